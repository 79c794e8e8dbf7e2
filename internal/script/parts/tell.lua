-- tell publishes message by the command verb: "publish", "spublish", or "both" while
-- it is not known which of them reaches the waiters. It returns 210 to 249 for 0 to
-- 39 subscribers that this server knows, or more, and 250 if it could not be sent.
--
-- A message that cannot be sent (no right to the channel, a server without sharded
-- channels, a slot that migrates) must not fail what it tells of: waiters ask again
-- by themselves. Of "both" it is enough that one could be sent.
local function tell(verb, channel, message)
  local told
  if verb == 'both' then
    told = redis.pcall('spublish', channel, message)
    verb = 'publish'
  end
  local plain = redis.pcall(verb, channel, message)
  if type(told) ~= 'number' then
    told = plain
  elseif type(plain) == 'number' then
    told = told + plain
  end
  if type(told) ~= 'number' then
    return 250
  end
  return 210 + math.min(told, 39)
end
