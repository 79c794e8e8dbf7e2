-- guarded: for how many milliseconds the restart guard still refuses a grant; 0: it
-- does not. Its second result is an error reply, if the server cannot be asked.
--
-- It asks LASTSAVE first, which costs a fraction of INFO: it is the server's start
-- until something is saved, and later after that, so it can prove that the server
-- has run for long enough, and never the contrary. Both answers are whole seconds
-- of the start, rounded down; the end of that second counts.
local function guarded(guard)
  if guard == 0 then
    return 0
  end
  local time, started = redis.pcall('time'), redis.pcall('lastsave')
  local wait
  if time[1] and type(started) == 'number' then
    wait = guard - time[1] * 1000 - math.floor(time[2] / 1000) + (started + 1) * 1000
  end
  if not wait or wait > 0 then
    local info = redis.pcall('info', 'server')
    local up = time[1] and type(info) == 'string' and string.match(info, 'uptime_in_seconds:(-?%d+)')
    if not up then
      return 0, redis.error_reply('ERR the restart guard cannot see for how long this server has run: ' ..
        'its user needs the right to TIME and INFO')
    end
    wait = guard - math.floor(time[2] / 1000) - up * 1000 + 1000
  end
  return math.max(wait, 0)
end
