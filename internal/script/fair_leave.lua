-- fair_leave: takes fields of this client that nobody waits or works under any more out
-- of the queue, and out of the lock.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the queue
-- KEYS[3]  the scores of those in it
-- ARGV[1]  the channel, as in fair_release
-- ARGV[2]  publish command, see tell
-- ARGV[3+] in turns a field, and for how long the queue would have waited for it
--
-- Replies
--   204         gone: none of them was there; nothing was changed
--   206         left: the queue is rid of them; others have the lock
--   210 to 250  released: and the lock is free; whoever is the head now was told
--
-- Those behind one that leaves have its time taken off their scores, as Redisson does;
-- behind many, once, by the sum: the queue is read and walked once, however many leave.
-- Where a key of another type is in place of the queue nobody stands in it, and that must
-- not keep the lock from being freed.
local waits = {}
for i = 3, #ARGV, 2 do
  waits[ARGV[i]] = tonumber(ARGV[i + 1])
end
misplaced(KEYS[2], KEYS[3]) -- what cannot be reached fails here, before anything is changed
local found, saved, stay, leave = false, 0, {}, {}
for _, field in ipairs(try('lrange', KEYS[2], 0, -1) or {}) do
  if not waits[field] then
    table.insert(stay, field)
    if saved > 0 then
      closeUp(KEYS[3], field, saved)
    end
  else
    table.insert(leave, field)
    if try('zrem', KEYS[3], field) == 1 then
      saved = saved + waits[field]
    end
  end
end
strike(KEYS[2], leave, stay)
found = #leave > 0
for i = 3, #ARGV, 2 do
  found = try('zrem', KEYS[3], ARGV[i]) == 1 or found
  local stands = try('hmget', KEYS[1], ARGV[i], 'mode') or {}
  if stands[1] and not stands[2] then
    redis.call('del', KEYS[1])
    found = true
  end
end
if not found then
  return 204
end
if try('exists', KEYS[1]) == 1 then
  return 206
end
return tellNext(ARGV[2], ARGV[1], KEYS[2], KEYS[3])
