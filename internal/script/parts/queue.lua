-- What a fair lock's scripts do with its queue, a list of fields, and with the
-- scores of those who stand there, the moments until which each is waited for, in
-- milliseconds since 1970. Both are Redisson's.

-- clock is the server's time in milliseconds since 1970.
local function clock()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- sweep drops the heads of the queue whose time is over, and those without a score,
-- which nobody waits for. It returns the head that is left, or false, and its score.
local function sweep(queue, scores, now)
  while true do
    local head = redis.call('lindex', queue, 0)
    if not head then
      return false
    end
    local score = tonumber(redis.call('zscore', scores, head) or nil)
    if score and score > now then
      return head, score
    end
    redis.call('lpop', queue)
    redis.call('zrem', scores, head)
  end
end

-- closeUp takes wait milliseconds off the scores of some: whoever stood before them
-- does so no longer, and each one's score has the time of all before it in it.
local function closeUp(scores, some, wait)
  for _, field in ipairs(some) do
    if redis.call('zscore', scores, field) then
      redis.call('zincrby', scores, -wait, field)
    end
  end
end

-- enter takes field, if it is there, out of the queue: it has the lock.
local function enter(queue, scores, field, wait)
  redis.call('lrem', queue, 1, field)
  if redis.call('zrem', scores, field) == 1 then
    closeUp(scores, redis.call('lrange', queue, 0, -1), wait)
  end
end
