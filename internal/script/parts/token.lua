-- lastToken reads the counter of fencing tokens; nil: it is none, or higher than what
-- numbers in Lua keep apart. draw raises it: by
-- one, or to the server's time in microseconds if that is more, so that tokens go on
-- rising when the counter was lost. draw returns the token as text: 16 digits, which
-- Lua's own conversion would round.
--
-- A counter is shared with Redisson, which counts by INCR; its MultiLock may have
-- put a TTL on it, which would begin the count anew.
local function lastToken(key)
  local text = redis.pcall('get', key) or '0'
  if type(text) ~= 'string' or not string.find(text, '^%d+$') or tonumber(text) > 9007199254740990 then
    return nil
  end
  return tonumber(text)
end

local function draw(key, last)
  local time = redis.call('time')
  local token = math.max(last + 1, time[1] * 1000000 + time[2])
  redis.call('incrby', key, string.format('%.0f', token - last))
  redis.call('persist', key)
  return string.format('%.0f', token)
end
