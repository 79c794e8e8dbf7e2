-- fair_release: as release, and tells the head of the queue.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  its channel; a waiter's own one has its field behind a colon
-- ARGV[2]  publish command, see tell
-- ARGV[3]  the queue
-- ARGV[4]  the scores of those in it
-- ARGV[5+] the fields of this client that may stand there
--
-- Replies: 204, 210 to 250, as release
for i = 5, #ARGV do
  local stands = redis.call('hmget', KEYS[1], ARGV[i], 'mode')
  if stands[1] and not stands[2] then
    redis.call('del', KEYS[1])
    return tellNext(ARGV[2], ARGV[1], ARGV[3], ARGV[4])
  end
end
return 204
