-- release: the last Unlock, and the undoing of grants that nobody waits for.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel. It is no key: a second one that never stands anywhere would
--          make a cluster answer TRYAGAIN for as long as the slot migrates
-- ARGV[2]  publish command: "publish", "spublish", or "both" while it is not
--          known which of them reaches the waiters
-- ARGV[3+] the fields of this client that may stand there
--
-- Replies
--   204         gone: none of them was there; nothing was changed
--   210 to 249  released: one of them was there, the lock is free, and the
--               message went to 0 to 39 subscribers that this server knows, or
--               to more
--   250         released, but the message could not be sent
--
-- A second run finds nothing. A message that cannot be sent (no right to the
-- channel, a server without sharded channels, a slot that migrates) must not fail the release: waiters
-- ask again by themselves. Of "both" it is enough that one could be sent.
for i = 3, #ARGV do
  if redis.call('hexists', KEYS[1], ARGV[i]) == 1 then
    redis.call('del', KEYS[1])
    local verb, told = ARGV[2], nil
    if verb == 'both' then
      told = redis.pcall('spublish', ARGV[1], '0')
      verb = 'publish'
    end
    local plain = redis.pcall(verb, ARGV[1], '0')
    if type(told) ~= 'number' then
      told = plain
    elseif type(plain) == 'number' then
      told = told + plain
    end
    if type(told) ~= 'number' then
      return 250
    end
    return 210 + math.min(told, 39)
  end
end
return 204
