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
-- Those behind one that leaves have its time taken off their scores, as Redisson does.
redis.call('llen', KEYS[2]) -- keys of other types fail here, before anything is changed
redis.call('zcard', KEYS[3])
local found = false
for i = 3, #ARGV, 2 do
  local field = ARGV[i]
  local line = try('lrange', KEYS[2], 0, -1) or {}
  if (try('lrem', KEYS[2], 0, field) or 0) > 0 then
    found = true
  end
  if try('zrem', KEYS[3], field) == 1 then
    for at, other in ipairs(line) do
      if other == field then
        closeUp(KEYS[3], line, at + 1, ARGV[i + 1])
      end
    end
    found = true
  end
  local stands = try('hmget', KEYS[1], field, 'mode') or {}
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
