-- keep: re-enter, extend and inner release. The hold goes on at a given depth.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds that the hold needs from now
-- ARGV[2]  the owner's field
-- ARGV[3]  depth, absolute, at least 1
--
-- Replies
--   202  kept: the field stands at that depth, for at least that TTL
--   204  gone: the field is not there; the hold is lost, nothing was changed
--
-- A second run writes the same state again. The TTL is only raised, so a late
-- copy cannot shorten a live hold. PEXPIRE goes first because it passes when
-- the server is out of memory, and HSET may follow it then. A TTL below 1 is
-- refused: PEXPIRE would delete the key by it.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return 204
end
local left = redis.call('pttl', KEYS[1])
if left < ttl then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  redis.call('pexpire', KEYS[1], left)
end
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
return 202
