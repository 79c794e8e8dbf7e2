-- info: what stands at a lock's key, as one moment has it.
--
-- KEYS[1]  the lock's key
--
-- Reply: a list of the key's PTTL, then field and value in turns. It is the
-- PTTL -2 alone when the key is free. Nothing is changed.
local answer = redis.call('hgetall', KEYS[1])
table.insert(answer, 1, tostring(redis.call('pttl', KEYS[1])))
return answer
