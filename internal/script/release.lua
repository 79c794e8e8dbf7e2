-- release: the last Unlock, and the undoing of grants that nobody waits for.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel. It is no key: a second one that never stands anywhere would
--          make a cluster answer TRYAGAIN for as long as the slot migrates
-- ARGV[2]  publish command, see tell
-- ARGV[3+] the fields of this client that may stand there
--
-- Replies
--   204         gone: none of them was there; nothing was changed
--   210 to 250  released: one of them was there, the lock is free, and that was
--               told; see tell
--
-- A second run finds nothing. A read-write lock may have a field of that name; it is
-- none of ours.
for i = 3, #ARGV do
  local stands = redis.call('hmget', KEYS[1], ARGV[i], 'mode')
  if stands[1] and not stands[2] then
    redis.call('del', KEYS[1])
    return tell(ARGV[2], ARGV[1], '0')
  end
end
return 204
