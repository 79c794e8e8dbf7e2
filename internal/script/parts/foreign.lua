-- foreign tells whether the hash at key is somebody's data and no lock: no field is like
-- an owner's, <client>:<owner>. Of a large hash it looks at a few.
local function foreign(key)
  local some = redis.call('hscan', key, 0)[2]
  for i = 1, #some, 2 do
    if string.find(some[i], ':', 1, true) then
      return false
    end
  end
  return #some > 0
end

-- noLock is the error for such a hash.
local function noLock()
  return redis.error_reply('WRONGTYPE the hash that stands there has no fields of a lock')
end
