-- What a fair lock's scripts do with its queue, a list of fields, and with the
-- scores of those who stand there, the moments until which each is waited for, in
-- milliseconds since 1970. Both are Redisson's.

-- clock is the server's time in milliseconds since 1970.
local function clock()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- try is redis.call, but for a key that is gone from a slot that migrates, where it
-- would raise an error in the middle of a script, and for one of another type: false then.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    return false
  end
  return reply
end

-- misplaced tells whether keys of other types stand where the queue or its scores belong,
-- so that nobody can queue. Where they cannot be reached it raises the error.
local function misplaced(queue, scores)
  for _, ask in ipairs({{'llen', queue}, {'zcard', scores}}) do
    local reply = redis.pcall(ask[1], ask[2])
    if type(reply) == 'table' and reply.err then
      if string.find(reply.err, 'WRONGTYPE', 1, true) then
        return true
      end
      redis.call(ask[1], ask[2])
    end
  end
  return false
end

-- sweep drops the heads of the queue whose time is over, and those without a score,
-- which nobody waits for; but not live, which asks at this moment. It returns the head
-- that is left, or false, and its score.
local function sweep(queue, scores, now, live)
  while true do
    local head = try('lindex', queue, 0)
    if not head then
      return false
    end
    local score = tonumber(try('zscore', scores, head) or nil)
    if score and (score > now or head == live) then
      return head, score
    end
    try('lpop', queue)
    try('zrem', scores, head)
  end
end

-- closeUp takes wait milliseconds off the score of field, if it has one: those who waited
-- for so long stood before it and do so no longer, and each one's score has the time of
-- all before it in it.
local function closeUp(scores, field, wait)
  if try('zscore', scores, field) then
    try('zincrby', scores, string.format('%.0f', -wait), field)
  end
end

-- enter takes field, if it is there, out of the queue: it has the lock.
local function enter(queue, scores, field, wait)
  try('lrem', queue, 1, field)
  if try('zrem', scores, field) == 1 then
    for _, other in ipairs(try('lrange', queue, 0, -1) or {}) do
      closeUp(scores, other, wait)
    end
  end
end

-- strike takes those that leave out of the queue, in which else only those that stay stand.
--
-- LREM walks the queue for each. So of many only the first goes that way, because LREM
-- passes when the server is out of memory, and what follows may then: those that stay are
-- written anew behind the old queue, before that is cut off. There is a queue all the
-- time: one that is gone could not be written while its slot migrates.
local function strike(queue, leave, stay)
  for i, field in ipairs(leave) do
    if i == 2 and #leave > 8 then
      local old, written = try('llen', queue), true
      for at = 1, #stay, 1000 do -- Lua unpacks no more than some thousand
        written = written and try('rpush', queue, unpack(stay, at, math.min(at + 999, #stay)))
      end
      if written then
        try('ltrim', queue, old, -1)
        return
      end
    end
    try('lrem', queue, 0, field)
  end
end

-- stand sets the score of field, which has the place of that number in the queue, and
-- returns it. One that comes now has what Redisson gives it: the score of the one before,
-- or the end of the holder's TTL, left, and its own wait more. The restart guard counts as
-- such a holder.
--
-- One that was there already lives, and will say so again. As the head it needs no more
-- than its wait. Elsewhere the time that has passed is added to what it has, because those
-- before it take their own waits off that when they enter; the limit, most, keeps a second
-- run from adding much. It never has less than one that comes now: a peer may have taken
-- off too much.
local function stand(queue, scores, place, field, before, wait, passed, most, now, left)
  local score = tonumber(redis.call('zscore', scores, field) or nil)
  if place == 0 then
    score = now + wait + (score and 0 or math.max(left, 0))
  else
    local least = wait + (tonumber(redis.call('zscore', scores, before) or nil) or now)
    score = math.max(least, score and math.min(score + passed, now + most) or 0)
  end
  redis.call('zadd', scores, string.format('%.0f', score), field)
  return score
end
