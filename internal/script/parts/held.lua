-- held: the reply to an acquire while others are there, with the key's PTTL. A hash
-- without expiry may be no lock at all.
--
-- Others are also there on a master that has become a replica, and nothing may
-- ever change on it. A HDEL of nothing tells: it is refused as READONLY there,
-- passes when the server is out of memory, and is not passed on to replicas. The
-- refusals of a master that must not write at the moment leave "held" as it is.
local function held(key, left)
  if left == -1 and foreign(key) then
    return noLock()
  end
  local write = redis.pcall('hdel', key, '')
  if type(write) == 'table' and string.find(write.err, 'READONLY ', 1, true) then
    return redis.error_reply("READONLY You can't write against a read only replica.")
  end
  return 'held:' .. left
end
