-- acquire: the lock for an owner that is not inside, at depth 1.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  the owner's field
-- ARGV[3+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201          granted: the field stands at 1; nobody else is there
--   "held:<ms>"  others are there; <ms> is the key's PTTL, -1 without expiry
--
-- Others are also there on a master that has become a replica, and nothing may
-- ever change on it. A HDEL of nothing tells: it is refused as READONLY there,
-- passes when the server is out of memory, and is not passed on to replicas. The
-- refusals of a master that must not write at the moment leave "held" as it is.
--
-- A second run finds its own field and grants again. It only raises the TTL
-- then, so that a late copy cannot undercut a longer one. PEXPIRE goes first:
-- it checks the TTL before anything is written, and it passes when the server
-- is out of memory. A TTL below 1 is refused: PEXPIRE would delete the key by it.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local size = redis.call('hlen', KEYS[1])
if size == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 201
end

local mine = redis.call('hexists', KEYS[1], ARGV[2])
local own = mine
for i = 3, #ARGV do
  own = own + redis.call('hexists', KEYS[1], ARGV[i])
end
local left = redis.call('pttl', KEYS[1])
if own < size then
  local write = redis.pcall('hdel', KEYS[1], '')
  if type(write) == 'table' and string.find(write.err, 'READONLY ', 1, true) then
    return redis.error_reply("READONLY You can't write against a read only replica.")
  end
  return 'held:' .. left
end

if mine == 0 or left < ttl then
  redis.call('pexpire', KEYS[1], ARGV[1])
else
  redis.call('pexpire', KEYS[1], left)
end
redis.call('hset', KEYS[1], ARGV[2], 1)
for i = 3, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
return 201
