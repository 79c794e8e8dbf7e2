-- rw_force: removes a read-write lock whose readers, or whose writer, are inside.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel; no key, as in release
-- ARGV[2]  publish command, see tell
-- ARGV[3]  "read" or "write": whom it is to remove
-- ARGV[4]  what the keys of read holds begin with, see holdKey
--
-- Replies
--   "removed"  they were inside, and what they read beside writing too; waiters were told
--   "free"     nobody was, with that half
--   "lock"     a lock of another kind stands there; nothing was changed
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode and redis.call('exists', KEYS[1]) == 1 then
  return 'lock'
end
if mode ~= ARGV[3] then
  return 'free'
end
for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
  if field ~= 'mode' then
    drop(KEYS[1], ARGV[4], field)
  end
end
redis.call('del', KEYS[1])
tell(ARGV[2], ARGV[1], mode == 'write' and '1' or '0')
return 'removed'
