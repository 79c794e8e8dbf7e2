-- fair_pass: hands the lock to the next owner of this client if that one is the head of
-- the queue, and else releases it to whoever is.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the queue
-- KEYS[3]  the scores of those in it
-- ARGV[1]  TTL in milliseconds of the next hold
-- ARGV[2]  the next owner's field
-- ARGV[3]  for how long the queue would have waited for it, as in fair_acquire
-- ARGV[4]  the channel, as in fair_release
-- ARGV[5]  publish command, see tell
-- ARGV[6+] the fields of this client that may stand there before
--
-- Replies
--   203         passed, as pass
--   204         gone, as pass
--   210 to 250  released: another one is the head, and was told; or keys of other types
--               are in place of the queue, and it has no head; see tell
--
-- A second run finds the new field, leaves its depth and only raises the TTL, or it finds
-- nothing.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local mine = redis.call('hexists', KEYS[1], ARGV[2])
local own = mine
for i = 6, #ARGV do
  own = own + redis.call('hexists', KEYS[1], ARGV[i])
end
if own == 0 or redis.call('hexists', KEYS[1], 'mode') == 1 then
  return 204
end
local bad = misplaced(KEYS[2], KEYS[3]) -- no business of the hold that ends
if mine == 0 and (bad or sweep(KEYS[2], KEYS[3], clock(), ARGV[2]) ~= ARGV[2]) then
  redis.call('del', KEYS[1])
  return tellNext(ARGV[5], ARGV[4], KEYS[2], KEYS[3])
end
if mine == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  raise(KEYS[1], ttl)
end
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
for i = 6, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
enter(KEYS[2], KEYS[3], ARGV[2], tonumber(ARGV[3]))
return 203
