-- A promoted message was sent: its permit waits for as long as the queue may take.
--
-- KEYS     1 claim  2 sent  3 messages  4 begun  (as in work.lua)
-- ARGV     1 the word that the answer begins with
--          2 id
--          3 new_id  that the queue has given it; or the same
--          4 lives   ms
-- Returns  1 its permit waits, 0 it has begun
-- luacheck: read globals now integer

local claim, sent, messages, id, new_id = KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3]

if redis.call('HGET', claim, 'id') == id then redis.call('HSET', claim, 'id', new_id) end
if not redis.call('ZSCORE', sent, id) then return 0 end
local has_begun = redis.call('SREM', KEYS[4], new_id) == 1
if not has_begun then
  -- Before the old one is removed: a key that is made anew would have no TTL.
  redis.call('ZADD', sent, integer(now + ARGV[4] * 1000), new_id)
  if id == new_id then return 1 end
  local message, at = unpack(redis.call('HMGET', messages, id, '\t' .. id))
  redis.call('HSET', messages, new_id, message, '\t' .. new_id, at or '')
end
redis.call('ZREM', sent, id)
redis.call('HDEL', messages, id, '\t' .. id)
return has_begun and 0 or 1
