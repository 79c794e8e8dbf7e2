-- info: what stands at a lock's key, as one moment has it.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  a fair lock's queue, no key, as in fair_release; else empty
-- ARGV[2]  what the keys of a read-write lock's read holds begin with; else empty
--
-- Reply: the key's PTTL, -2 when it is free; a list of field and value in turns; and a
-- list of those who queue. Readers whose holds are over are left out. Nothing is changed.
local queue, base = ARGV[1] or '', ARGV[2] or ''
local line = queue ~= '' and redis.pcall('lrange', queue, 0, -1) or {}
if line.err then
  line = {}
end
local all, live = redis.call('hgetall', KEYS[1]), {}
for i = 1, #all, 2 do
  local dead = false
  if base ~= '' and all[i] ~= 'mode' and not writes(all[i]) then
    local left, unsure = longest(KEYS[1], base, all[i])
    dead = left == 0 and not unsure
  end
  if not dead then
    table.insert(live, all[i])
    table.insert(live, all[i + 1])
  end
end
return {tostring(redis.call('pttl', KEYS[1])), live, line}
