-- info: what stands at a lock's key, as one moment has it.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  a fair lock's queue, only then; no key, as in fair_release
--
-- Reply: the key's PTTL, -2 when it is free; a list of field and value in turns; and a
-- list of those who queue. Nothing is changed.
local line = ARGV[1] and redis.pcall('lrange', ARGV[1], 0, -1) or {}
if line.err then
  line = {}
end
return {tostring(redis.call('pttl', KEYS[1])), redis.call('hgetall', KEYS[1]), line}
