-- rest sees to those who are left in a read-write lock when some have been dropped; wrote
-- tells that the writer was among them. It returns 205 if others are still inside, and
-- else what tell returns.
--
-- What is left of the TTL is what the longest read hold needs, also after a writer has
-- become a reader. While the writer is inside it stays. Readers without a key that lives
-- are dead, as in Redisson: when no other is left the lock is free. The message is "1",
-- which wakes all waiters of a Redisson process, after a writer, and "0", which wakes one,
-- after a reader.
local function rest(key, base, verb, channel, wrote)
  local most, unsure = 0, false
  for _, field in ipairs(redis.call('hkeys', key)) do
    if writes(field) then
      return 205
    end
    if field ~= 'mode' then
      local left, blind = longest(key, base, field)
      most, unsure = math.max(most, left), unsure or blind
    end
  end
  if most == 0 and not unsure then
    redis.call('del', key)
    return tell(verb, channel, wrote and '1' or '0')
  end
  if not unsure then
    redis.call('pexpire', key, string.format('%.0f', most))
  end
  if not wrote then
    return 205
  end
  redis.call('hset', key, 'mode', 'read')
  return tell(verb, channel, '1')
end
