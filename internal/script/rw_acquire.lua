-- rw_acquire: the read or the write half of a read-write lock for an owner that is not
-- inside with that half, at depth 1.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  the owner's field; that of a writer ends in ":write"
-- ARGV[3]  restart guard, as in acquire
-- ARGV[4]  "read" or "write"
-- ARGV[5]  what the keys of read holds begin with, see holdKey
-- ARGV[6]  a reader's own field as a writer, if it is one; else empty
-- ARGV[7+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201               granted: the field stands, at 1 if it is new, a reader's first key
--                     beside it
--   "granted:deep"    the same at another depth, as acquire
--   "held:<ms>"       others are there, as acquire
--   "restarted:<ms>"  as acquire
--   "lock"            a lock of another kind stands there; nothing was changed
--
-- A second run finds its own field, leaves its depth and grants again. The TTL of the
-- hash is as long as the longest hold needs: a writer that comes in sets it, a reader
-- only raises it. The key of a read hold goes first: where it cannot be made, because
-- the slot migrates, nothing was changed.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local reading = ARGV[4] == 'read'
local mode = redis.call('hget', KEYS[1], 'mode')
local size, left = redis.call('hlen', KEYS[1]), redis.call('pttl', KEYS[1])
local mine = redis.call('hexists', KEYS[1], ARGV[2])
if size > 0 and not mode then
  return 'lock'
end
if mode then
  local own = mine
  for i = 7, #ARGV do
    own = own + redis.call('hexists', KEYS[1], ARGV[i])
  end
  local alone = own == size - 1
  if not alone and not (reading and mode == 'read') then
    local writer = not reading
    if reading and redis.call('hexists', KEYS[1], ARGV[6]) == 0 then
      local leftover = {}
      for i = 7, #ARGV do
        leftover[ARGV[i]] = true
      end
      for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
        writer = writer or writes(field) and not leftover[field]
      end
    end
    if writer then
      return held(KEYS[1], left)
    end
  end
  if alone and mine == 0 then
    left = -2 -- only leftovers: they need no time
  end
end

local wait, blind = guarded(tonumber(ARGV[3]))
if blind then
  return blind
end
if wait > 0 then
  return 'restarted:' .. wait
end
if reading then
  local hold = holdKey(ARGV[5], ARGV[2], 1)
  local stands = redis.pcall('pttl', hold)
  local made = stands
  if type(stands) == 'number' and stands < ttl then
    made = redis.pcall('set', hold, '1', 'PX', ARGV[1])
  end
  if type(made) == 'table' and made.err then
    if string.find(made.err, 'non local key', 1, true) then
      return redis.error_reply('TRYAGAIN the slot migrates')
    end
    return made
  end
end
local need = string.format('%.0f', math.max(left, ttl))
redis.call('pexpire', KEYS[1], need)
if not reading then
  redis.call('hset', KEYS[1], 'mode', 'write')
elseif mode ~= 'write' or redis.call('hexists', KEYS[1], ARGV[6]) == 0 then
  redis.call('hset', KEYS[1], 'mode', 'read')
end
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], need)
for i = 7, #ARGV do
  drop(KEYS[1], ARGV[5], ARGV[i])
end
if mine == 1 and deep(KEYS[1], ARGV[2]) then
  return 'granted:deep'
end
return 201
