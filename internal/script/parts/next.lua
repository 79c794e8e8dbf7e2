-- tellNext tells that a fair lock is free: the head of the queue on a channel of its
-- own, or everybody if nobody queues. Only the head is told: a Redisson waiter that
-- is not the head would ask again without a pause.
--
-- The names of the queue come as arguments: as keys, which mostly do not exist, they
-- would make a cluster answer TRYAGAIN for as long as the slot migrates. Where
-- they cannot be read the heads find out by themselves, in about a second. Of whom only the
-- score cannot be read is told, and stays where it is.
local function tellNext(verb, channel, queue, scores)
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  while true do
    local head = redis.pcall('lindex', queue, 0)
    if type(head) ~= 'string' then
      return tell(verb, channel, '0')
    end
    local score = redis.pcall('zscore', scores, head)
    if type(score) == 'table' or score and tonumber(score) > now then
      return tell(verb, channel .. ':' .. head, '0')
    end
    if type(redis.pcall('lpop', queue)) ~= 'string' then
      return 250
    end
    redis.pcall('zrem', scores, head)
  end
end
