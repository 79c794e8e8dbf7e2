-- rw_pass: hands the write half from one owner of this client to the next one, at depth
-- 1 and with a TTL of its own. Nobody else is told. If others are inside, it is released
-- instead.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds of the next hold
-- ARGV[2]  the next owner's field, which ends in ":write"
-- ARGV[3]  what the keys of read holds begin with, see holdKey
-- ARGV[4]  the channel, as in rw_release
-- ARGV[5]  publish command, see tell
-- ARGV[6+] the fields of this client that may stand there before
--
-- Replies
--   203, 204         passed, gone: as pass
--   205, 210 to 250  released: as rw_release
--
-- A second run is as one of pass.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local mine = redis.call('hexists', KEYS[1], ARGV[2])
local own, wrote = mine, mine == 1
for i = 6, #ARGV do
  if redis.call('hexists', KEYS[1], ARGV[i]) == 1 then
    own = own + 1
    wrote = wrote or writes(ARGV[i])
  end
end
if not wrote or redis.call('hget', KEYS[1], 'mode') ~= 'write' then
  return 204
end
if own < redis.call('hlen', KEYS[1]) - 1 and mine == 0 then
  for i = 6, #ARGV do
    drop(KEYS[1], ARGV[3], ARGV[i])
  end
  return rest(KEYS[1], ARGV[3], ARGV[5], ARGV[4], true)
end
if mine == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  raise(KEYS[1], ttl)
end
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
for i = 6, #ARGV do
  drop(KEYS[1], ARGV[3], ARGV[i])
end
return 203
