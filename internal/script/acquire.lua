-- acquire: the lock for an owner that is not inside, at depth 1.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  the owner's field
-- ARGV[3]  restart guard: nothing is granted before the server has run for that
--          many milliseconds; 0: whatever it has
-- ARGV[4+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201               granted: the field stands at 1; nobody else is there
--   "held:<ms>"       others are there; <ms> is the key's PTTL, -1 without expiry
--   "restarted:<ms>"  the guard refuses for so long still; nothing was changed
--
-- Others are also there on a master that has become a replica, and nothing may
-- ever change on it. A HDEL of nothing tells: it is refused as READONLY there,
-- passes when the server is out of memory, and is not passed on to replicas. The
-- refusals of a master that must not write at the moment leave "held" as it is.
--
-- The guard asks LASTSAVE first, which costs a fraction of INFO: it is the server's
-- start until something is saved, and later after that, so it can prove that the
-- server has run for long enough, and never the contrary. Both answers are whole
-- seconds of the start, rounded down; the end of that second counts.
--
-- A second run finds its own field and grants again. It only raises the TTL
-- then, so that a late copy cannot undercut a longer one. PEXPIRE goes first:
-- it checks the TTL before anything is written, and it passes when the server
-- is out of memory. A TTL below 1 is refused: PEXPIRE would delete the key by it.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local size = redis.call('hlen', KEYS[1])
local mine, left
if size > 0 then
  mine = redis.call('hexists', KEYS[1], ARGV[2])
  local own = mine
  for i = 4, #ARGV do
    own = own + redis.call('hexists', KEYS[1], ARGV[i])
  end
  left = redis.call('pttl', KEYS[1])
  if own < size then
    local write = redis.pcall('hdel', KEYS[1], '')
    if type(write) == 'table' and string.find(write.err, 'READONLY ', 1, true) then
      return redis.error_reply("READONLY You can't write against a read only replica.")
    end
    return 'held:' .. left
  end
end

local guard = tonumber(ARGV[3])
if guard > 0 then
  local time, started = redis.pcall('time'), redis.pcall('lastsave')
  local wait
  if time[1] and type(started) == 'number' then
    wait = guard - time[1] * 1000 - math.floor(time[2] / 1000) + (started + 1) * 1000
  end
  if not wait or wait > 0 then
    local info = redis.pcall('info', 'server')
    local up = time[1] and type(info) == 'string' and string.match(info, 'uptime_in_seconds:(-?%d+)')
    if not up then
      return redis.error_reply('ERR the restart guard cannot see for how long this server has run: ' ..
        'its user needs the right to TIME and INFO')
    end
    wait = guard - math.floor(time[2] / 1000) - up * 1000 + 1000
    if wait > 0 then
      return 'restarted:' .. wait
    end
  end
end

if size == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 201
end
if mine == 0 or left < ttl then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  redis.call('pexpire', KEYS[1], left)
end
redis.call('hset', KEYS[1], ARGV[2], 1)
for i = 4, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
return 201
