-- What a read-write lock's scripts do with the keys beside the hash: a string for
-- each read hold, whose TTL says for how long that hold lives.

-- holdKey is the key of the n-th read hold of field. base is the lock's name, in
-- braces if it has none of its own, so that all lie in one slot.
local function holdKey(base, field, n)
  return base .. ':' .. field .. ':rwlock_timeout:' .. n
end

local function writes(field)
  return string.sub(field, -6) == ':write'
end

-- drop takes field out of the hash, with the keys of its read holds. It returns
-- whether it was there.
local function drop(key, base, field)
  local count = tonumber(redis.call('hget', key, field) or nil)
  if not count then
    return redis.call('hdel', key, field) == 1
  end
  redis.call('hdel', key, field)
  if not writes(field) then
    for n = 1, count do
      redis.pcall('del', holdKey(base, field, n))
    end
  end
  return true
end

-- longest is the longest PTTL of the read holds of field, 0 if none lives. Its
-- second result tells that some could not be looked at, because the slot migrates.
local function longest(key, base, field)
  local most, unsure = 0, false
  for n = 1, tonumber(redis.call('hget', key, field) or nil) or 0 do
    local left = redis.pcall('pttl', holdKey(base, field, n))
    if type(left) ~= 'number' then
      unsure = true
    else
      most = math.max(most, left)
    end
  end
  return most, unsure
end

-- keepHolds has each of count read holds of field live for at least ttl milliseconds. It
-- goes behind another write, so that it passes when the server is out of memory. Where a
-- key cannot be reached, because the slot migrates, it stays as it is; the result is
-- another error, if there is one.
local function keepHolds(base, field, count, ttl)
  for n = 1, count do
    local hold = holdKey(base, field, n)
    local left = redis.pcall('pttl', hold)
    if type(left) == 'number' and left < ttl then
      local made = redis.pcall('set', hold, '1', 'PX', string.format('%.0f', ttl))
      if type(made) == 'table' and made.err and not string.find(made.err, 'non local key', 1, true) then
        return made
      end
    end
  end
end
