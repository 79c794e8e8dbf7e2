-- renew: keeps many holds alive, one key each.
--
-- KEYS[i]      a lock's key
-- ARGV[2i-1]   TTL in milliseconds; 0 only checks that the hold is there
-- ARGV[2i]     the owner's field
--
-- Reply: one letter a key, in order
--   "k"  kept: the field is there, the TTL is at least what was asked
--   "g"  gone: it is not there, or the key is of another type, or a read-write lock
--
-- Nothing is ever created here. A TTL is only raised. A key of another type
-- must not fail the others, hence pcall.
local answer = {}
for i, key in ipairs(KEYS) do
  local ttl = tonumber(ARGV[2 * i - 1])
  local stands = redis.pcall('hmget', key, ARGV[2 * i], 'mode')
  if stands[1] and not stands[2] then
    if ttl > 0 and redis.call('pttl', key) < ttl then
      redis.call('pexpire', key, ARGV[2 * i - 1])
    end
    answer[i] = 'k'
  else
    answer[i] = 'g'
  end
end
return table.concat(answer)
