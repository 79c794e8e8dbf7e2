-- rw_pass: hands the write half from one owner of this client to the next one, at depth
-- 1 and with a TTL of its own. Nobody else is told.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds of the next hold
-- ARGV[2]  the next owner's field, which ends in ":write"
-- ARGV[3]  what the keys of read holds begin with, see holdKey
-- ARGV[4+] the fields of this client that may stand there before
--
-- Replies: 203, 204, as pass. It is also gone when others have come in.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local mine = redis.call('hexists', KEYS[1], ARGV[2])
local own = mine
for i = 4, #ARGV do
  own = own + redis.call('hexists', KEYS[1], ARGV[i])
end
if own == 0 or redis.call('hget', KEYS[1], 'mode') ~= 'write' or own < redis.call('hlen', KEYS[1]) - 1 then
  return 204
end
if mine == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  raise(KEYS[1], ttl)
end
redis.call('hset', KEYS[1], ARGV[2], 1)
for i = 4, #ARGV do
  drop(KEYS[1], ARGV[3], ARGV[i])
end
return 203
