-- raise: the key's TTL to at least ttl milliseconds, never lower. It always writes:
-- a HSET after it passes when the server is out of memory.
local function raise(key, ttl)
  redis.call('pexpire', key, string.format('%.0f', math.max(ttl, redis.call('pttl', key))))
end
