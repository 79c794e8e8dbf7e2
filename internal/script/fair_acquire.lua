-- fair_acquire: as acquire, but in the order of arrival. Whoever does not get the lock
-- stands in the queue afterwards.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the queue
-- KEYS[3]  the scores of those in it
-- ARGV[1]  TTL in milliseconds
-- ARGV[2]  the owner's field, which keeps its place from one run to the next
-- ARGV[3]  restart guard, as in acquire
-- ARGV[4]  for how many milliseconds the queue waits for this one when it is the
--          head and says nothing; 0: it does not queue, this is its only attempt
-- ARGV[5]  how many milliseconds have passed since its last run; 0: the first one
-- ARGV[6]  the most that its score may be ahead of the server's time
-- ARGV[7+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201                      granted, as acquire; the field is not in the queue
--   "held:<ms>"              others have it, or are before; only when it does not queue
--   "queued:<ms>:<ahead>"    it stands in the queue. It is not its turn before <ms>,
--                            unless it is told: the PTTL of the holder (-1: none), or
--                            the time for which the head is waited for still. Its
--                            score is <ahead> milliseconds ahead of the server's time
--   "restarted:<ms>", "rwlock"  as acquire
--
-- The score of a new one is Redisson's: that of the last in the queue, else the end of
-- the holder's TTL, and ARGV[4] more. Whoever enters or leaves takes its own share off
-- those behind. A live one adds the time that has passed instead of setting a score, so
-- that this stays right; the limit keeps a second run from adding much. The moment is
-- the server's.
local ttl = tonumber(ARGV[1])
if ttl < 1 then
  return redis.error_reply('ERR TTL below 1')
end
local wait = tonumber(ARGV[4])
local now = clock()
local size = redis.call('hlen', KEYS[1])
local mine, own, left = 0, 0, -2
if size > 0 then
  if redis.call('hexists', KEYS[1], 'mode') == 1 then
    return 'rwlock'
  end
  mine = redis.call('hexists', KEYS[1], ARGV[2])
  own = mine
  for i = 7, #ARGV do
    own = own + redis.call('hexists', KEYS[1], ARGV[i])
  end
  left = redis.call('pttl', KEYS[1])
end
redis.call('llen', KEYS[2]) -- keys of other types fail here, before anything is changed
redis.call('zcard', KEYS[3])

local head, due = sweep(KEYS[2], KEYS[3], now)
if own < size or mine == 0 and head and head ~= ARGV[2] then
  local hint = left -- leftovers of this client keep the head out until they are swept
  if size == 0 then
    hint = due - now
  end
  if wait == 0 then
    return held(KEYS[1], hint)
  end
  local score = tonumber(redis.call('zscore', KEYS[3], ARGV[2]) or nil)
  if score then
    score = math.max(score, math.min(score + ARGV[5], now + ARGV[6]))
  else
    redis.call('lrem', KEYS[2], 0, ARGV[2])
    local last = redis.call('lindex', KEYS[2], -1)
    local before = last and tonumber(redis.call('zscore', KEYS[3], last) or nil)
    score = (before or now + math.max(left, 0)) + wait
    redis.call('rpush', KEYS[2], ARGV[2])
  end
  redis.call('zadd', KEYS[3], string.format('%.0f', score), ARGV[2])
  return string.format('queued:%.0f:%.0f', hint, score - now)
end

local guard, blind = guarded(tonumber(ARGV[3]))
if blind then
  return blind
end
if guard > 0 then
  return 'restarted:' .. guard
end
if size > 0 and mine == 1 then
  raise(KEYS[1], ttl)
else
  redis.call('pexpire', KEYS[1], ARGV[1])
end
redis.call('hset', KEYS[1], ARGV[2], 1)
if size == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
end
for i = 7, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
enter(KEYS[2], KEYS[3], ARGV[2], wait)
return 201
