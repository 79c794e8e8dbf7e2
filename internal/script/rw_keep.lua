-- rw_keep: as keep, for the read or the write half of a read-write lock.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds that the hold needs from now
-- ARGV[2]  the owner's field; that of a writer ends in ":write"
-- ARGV[3]  depth, absolute, at least 1
-- ARGV[4]  what the keys of read holds begin with, see holdKey
--
-- Replies
--   202  kept: the field stands at that depth, for at least that TTL, and a reader has a
--        key for each of its holds
--   204  gone: the field is not there; the hold is lost, nothing was changed
--
-- Each TTL is only raised. A reader's keys above the depth go.
local ttl, depth = tonumber(ARGV[1]), tonumber(ARGV[3])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local stands = redis.call('hmget', KEYS[1], ARGV[2], 'mode')
if not stands[1] or not stands[2] then
  return 204
end
raise(KEYS[1], ttl)
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
if not writes(ARGV[2]) then
  local failed = keepHolds(ARGV[4], ARGV[2], depth, ttl)
  if failed then
    return failed
  end
  for n = depth + 1, tonumber(stands[1]) or 0 do
    redis.pcall('del', holdKey(ARGV[4], ARGV[2], n))
  end
end
return 202
