-- fair_beat: says of fields that stand in the queue that they are still waited for under.
-- It grants nothing.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the queue
-- KEYS[3]  the scores of those in it
-- ARGV     in turns a field, and of it what ARGV[4], [5] and [6] of fair_acquire are
--
-- Reply: how many of them stand in the queue, and behind a colon the head if it is one of
-- them and its turn has come: the lock is free. Their scores are set, see stand. Where keys
-- of other types are in place of the queue none of them stands there.
local some = {}
for i = 1, #ARGV, 4 do
  some[ARGV[i]] = {tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])}
end
if misplaced(KEYS[2], KEYS[3]) then
  return '0'
end
local now, left, found, before = clock(), redis.call('pttl', KEYS[1]), 0, nil
for at, field in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
  local own = some[field]
  if own then
    stand(KEYS[2], KEYS[3], at - 1, field, before, own[1], own[2], own[3], now, left)
    found = found + 1
  end
  before = field
end
local head = redis.call('lindex', KEYS[2], 0)
if left == -2 and some[head] then
  return found .. ':' .. head
end
return tostring(found)
