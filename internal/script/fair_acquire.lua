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
-- ARGV[6]  the most that its score may be ahead of the server's time by that
-- ARGV[7+] leftovers: fields of this client that no live hold uses
--
-- Replies
--   201, "granted:deep"      granted, as acquire; the field is not in the queue
--   "held:<ms>"              others have it, or are before; only when it does not queue
--   "queued:<ms>:<ahead>"    it stands in the queue. It is not its turn before <ms>,
--                            unless it is told: the PTTL of the holder (-1: none), or
--                            the time for which the head is waited for still, if that
--                            is less. If it says nothing it is waited for until <ahead>
--                            from now
--   "restarted:<ms>"         the guard refuses for so long still; only when it does not queue
--   "restarted:<ms>:<ahead>"  the same, and it stands in the queue, as above: what the
--                            guard keeps out comes in in its order when the guard ends.
--                            Those behind the head hear of the guard too
--   "rwlock"                 as acquire
--
-- Each run sets the score anew, see stand: so a live one keeps its place, whatever others
-- take off the scores of those behind them. The moment is the server's.
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
  if own < size and left == -1 and foreign(KEYS[1]) then
    return noLock()
  end
end
redis.call('llen', KEYS[2]) -- keys of other types fail here, before anything is changed
redis.call('zcard', KEYS[3])

local head, due = sweep(KEYS[2], KEYS[3], now, ARGV[2])
local behind = head and head ~= ARGV[2]
local guard = 0
if own == size then
  local blind
  guard, blind = guarded(tonumber(ARGV[3]))
  if blind then
    return blind
  end
end
if own < size or mine == 0 and behind or guard > 0 then
  local reply, hint = 'restarted', guard
  if guard == 0 then
    reply, hint = 'queued', left -- leftovers of this client keep the head out until they are swept
    if behind and (left < 0 or due - now < left) then
      hint = due - now
    end
  end
  if wait == 0 then
    return guard > 0 and 'restarted:' .. guard or held(KEYS[1], hint)
  end
  local place = redis.call('lpos', KEYS[2], ARGV[2])
  if not place then
    place = redis.call('rpush', KEYS[2], ARGV[2]) - 1
  end
  local before = place > 0 and redis.call('lindex', KEYS[2], place - 1)
  local rest = math.max(left, guard) -- nobody comes in before
  local score = stand(KEYS[2], KEYS[3], place, ARGV[2], before, wait, tonumber(ARGV[5]), tonumber(ARGV[6]), now, rest)
  return string.format('%s:%.0f:%.0f', reply, hint, score - now)
end
if size > 0 and mine == 1 then
  raise(KEYS[1], ttl)
else
  redis.call('pexpire', KEYS[1], ARGV[1])
end
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
if size == 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
end
for i = 7, #ARGV do
  redis.call('hdel', KEYS[1], ARGV[i])
end
enter(KEYS[2], KEYS[3], ARGV[2], wait)
if mine == 1 and deep(KEYS[1], ARGV[2]) then
  return 'granted:deep'
end
return 201
