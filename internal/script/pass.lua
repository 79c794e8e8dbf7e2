-- pass: hands the lock from one owner of this client to the next one, at
-- depth 1 and with a TTL of its own. Nobody else is told.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the counter of fencing tokens, only if the next owner wants one
-- ARGV[1]  TTL in milliseconds of the next hold
-- ARGV[2]  the next owner's field
-- ARGV[3+] the fields of this client that may stand there before
--
-- Replies
--   203               passed: the next owner's field stands, at 1 if it is new, and the
--                     others do not
--   "passed:<token>"  the same with a token
--   204               gone: none of them was there; the lock was lost, nothing was changed
--
-- A second run finds the new field, leaves its depth and only raises the TTL. The old
-- field goes last: HDEL of the only field would delete the key, and its TTL with it. A
-- TTL below 1 is refused: PEXPIRE would delete the key by it.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local mine = redis.call('hexists', KEYS[1], ARGV[2])
local own = mine
for i = 3, #ARGV do
  own = own + redis.call('hexists', KEYS[1], ARGV[i])
end
if own == 0 or redis.call('hexists', KEYS[1], 'mode') == 1 then
  return 204
end
local last = KEYS[2] and lastToken(KEYS[2])
if KEYS[2] and not last then
  return redis.error_reply('ERR the counter of fencing tokens is not a number')
end
if mine == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  raise(KEYS[1], ttl)
end
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
for i = 3, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
if last then
  return 'passed:' .. draw(KEYS[2], last)
end
return 203
