-- release: the last Unlock, and the undoing of grants that nobody waits for.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  its channel
-- ARGV[1]  publish command: "publish" or "spublish"
-- ARGV[2+] the fields of this client that may stand there
--
-- Replies
--   "released"  one of them was there; the lock is free, waiters were told
--   "gone"      none was there; nothing was changed
--
-- A second run finds nothing. A message that cannot be sent (no right to the
-- channel) must not fail the release: waiters ask again by themselves.
for i = 2, #ARGV do
  if redis.call('hexists', KEYS[1], ARGV[i]) == 1 then
    redis.call('del', KEYS[1])
    redis.pcall(ARGV[1], KEYS[2], '0')
    return 'released'
  end
end
return 'gone'
