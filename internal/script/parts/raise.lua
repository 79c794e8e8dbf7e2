-- raise: the key's TTL to at least ttl milliseconds, never lower. It always writes:
-- a HSET after it passes when the server is out of memory.
local function raise(key, ttl)
  local most = math.max(ttl, redis.call('pttl', key))
  if most > 0 then -- PEXPIRE would delete the key by less
    redis.call('pexpire', key, string.format('%.0f', most))
  end
end
