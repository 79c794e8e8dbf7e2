-- rw_release: the last Unlock of a half of a read-write lock, and the undoing of grants
-- that nobody waits for. Others who are inside stay there.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel; no key, as in release
-- ARGV[2]  publish command, see tell
-- ARGV[3]  what the keys of read holds begin with, see holdKey
-- ARGV[4]  the field of the hold that ends; empty: none does
-- ARGV[5+] leftovers: fields of this client that no live hold uses; they go too
--
-- Replies
--   204         gone: the field was not there, or none of the leftovers was if no hold
--               ends; they are gone in any case
--   205         released; others are still inside
--   210 to 250  released: the lock is free, or a writer has left and goes on as a
--               reader; that was told, see tell
if not redis.call('hget', KEYS[1], 'mode') then
  return 204
end
local found, dropped, wrote = false, false, false
for i = 4, #ARGV do
  if ARGV[i] ~= '' and redis.call('hexists', KEYS[1], ARGV[i]) == 1 then
    found = found or i == 4 or ARGV[4] == ''
    wrote = wrote or writes(ARGV[i])
    drop(KEYS[1], ARGV[3], ARGV[i])
    dropped = true
  end
end
if not dropped then
  return 204
end
local reply = rest(KEYS[1], ARGV[3], ARGV[2], ARGV[1], wrote)
return found and reply or 204
