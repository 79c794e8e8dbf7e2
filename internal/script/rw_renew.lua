-- rw_renew: keeps one hold of a read-write lock alive.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds; 0: what the hold has is not prolonged
-- ARGV[2]  the owner's field; that of a writer ends in ":write"
-- ARGV[3]  what the keys of read holds begin with, see holdKey
--
-- Replies
--   "k"  kept: the field is there, and it and a reader's keys last for at least the TTL
--   "g"  gone: it is not there, or the key is of another type
-- An error is neither: the hash may last longer, and a reader's keys do not.
--
-- Nothing is ever created here but the keys of a reader that is in the hash. A TTL is
-- only raised. With 0 that of the hash is put back to what the reader's keys have: a
-- Redisson reader that renews itself cuts it.
local ttl = tonumber(ARGV[1])
local stands = redis.pcall('hmget', KEYS[1], ARGV[2], 'mode')
if not stands[1] or not stands[2] then
  return 'g'
end
if writes(ARGV[2]) then
  raise(KEYS[1], ttl)
elseif ttl == 0 then
  raise(KEYS[1], longest(KEYS[1], ARGV[3], ARGV[2]))
else
  raise(KEYS[1], ttl)
  return keepHolds(ARGV[3], ARGV[2], tonumber(stands[1]) or 0, ttl) or 'k'
end
return 'k'
