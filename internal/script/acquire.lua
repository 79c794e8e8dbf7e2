-- acquire: the lock for an owner that is not inside, at depth 1.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the counter of fencing tokens, only if the owner wants one
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  the owner's field
-- ARGV[3]  restart guard: nothing is granted before the server has run for that
--          many milliseconds; 0: whatever it has
-- ARGV[4+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201                granted: the field stands, at 1 if it is new; nobody else is there
--   "granted:<token>"  the same with a token
--   "granted:deep", "granted:<token>:deep"  the same, but the field stands at another
--                      depth, which it had before
--   "held:<ms>"        others are there; <ms> is the key's PTTL, -1 without expiry
--   "restarted:<ms>"   the guard refuses for so long still; nothing was changed
--   "rwlock"           a read-write lock stands there; nothing was changed
--
-- A second run finds its own field and grants again, with another token. It only
-- raises the TTL then and leaves the depth, so that a late copy cannot undercut a longer
-- one, nor undo a re-entry. PEXPIRE
-- goes first: it checks the TTL before anything is written, and it passes when the
-- server is out of memory. A TTL below 1 is refused: PEXPIRE would delete the key by it.
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
    if redis.call('hexists', KEYS[1], 'mode') == 1 then
      return 'rwlock'
    end
    return held(KEYS[1], left)
  end
end

local wait, blind = guarded(tonumber(ARGV[3]))
if blind then
  return blind
end
if wait > 0 then
  return 'restarted:' .. wait
end
local last = KEYS[2] and lastToken(KEYS[2])
if KEYS[2] and not last then
  return redis.error_reply('WRONGTYPE the counter of fencing tokens is not a number')
end

if size == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  redis.call('hsetnx', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  if mine == 0 or left < ttl then
    redis.call('pexpire', KEYS[1], ARGV[1])
  else
    redis.call('pexpire', KEYS[1], left)
  end
  redis.call('hsetnx', KEYS[1], ARGV[2], 1)
  for i = 4, #ARGV do
    redis.call('hdel', KEYS[1], ARGV[i])
  end
end
local more = mine == 1 and deep(KEYS[1], ARGV[2])
if last then
  return 'granted:' .. draw(KEYS[2], last) .. (more and ':deep' or '')
end
return more and 'granted:deep' or 201
