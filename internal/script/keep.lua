-- keep: re-enter, extend and inner release. The hold goes on at a given depth.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the counter of fencing tokens, only if the owner wants one
-- ARGV[1]  TTL in milliseconds that the hold needs from now
-- ARGV[2]  the owner's field
-- ARGV[3]  depth, absolute, at least 1
--
-- Replies
--   202             kept: the field stands at that depth, for at least that TTL
--   "kept:<token>"  the same with a token
--   204             gone: the field is not there; the hold is lost, nothing was changed
--
-- A second run writes the same state again. The TTL is only raised, so a late
-- copy cannot shorten a live hold. PEXPIRE goes first because it passes when
-- the server is out of memory, and HSET may follow it then. A TTL below 1 is
-- refused: PEXPIRE would delete the key by it. A read-write lock may have a field of
-- that name; it is none of ours.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local stands = redis.call('hmget', KEYS[1], ARGV[2], 'mode')
if not stands[1] or stands[2] then
  return 204
end
local last = KEYS[2] and lastToken(KEYS[2])
if KEYS[2] and not last then
  return redis.error_reply('ERR the counter of fencing tokens is not a number')
end
raise(KEYS[1], ttl)
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
if last then
  return 'kept:' .. draw(KEYS[2], last)
end
return 202
