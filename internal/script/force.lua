-- force: removes the lock, whoever holds it.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel, no key as in release
-- ARGV[2]  publish command, see tell
-- ARGV[3]  a fair lock's queue, only then
-- ARGV[4]  and its scores
--
-- Replies
--   "removed"  it was held; it is free now, waiters were told
--   "free"     nobody held it
--   "rwlock"   the key is a read-write lock, which has channels of its own;
--              nothing was changed
--
-- A key of another type fails in HLEN, and a hash that is no lock is refused, before
-- anything is changed.
if redis.call('hlen', KEYS[1]) == 0 then
  return 'free'
end
if redis.call('hexists', KEYS[1], 'mode') == 1 then
  return 'rwlock'
end
if foreign(KEYS[1]) then
  return noLock()
end
redis.call('del', KEYS[1])
if ARGV[3] then
  tellNext(ARGV[2], ARGV[1], ARGV[3], ARGV[4])
else
  tell(ARGV[2], ARGV[1], '0')
end
return 'removed'
