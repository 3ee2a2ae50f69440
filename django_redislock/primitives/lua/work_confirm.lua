-- Let the claim of a message live on, and the permit of one that was promoted wait for it, perhaps under the
-- id that the queue has given; or undo the claim. A claim of another message is left alone.
--
-- KEYS     1 lock  2 claim  3 sent  4 messages  5 begun  6 names  (as in work.lua)
-- ARGV     1 the word that the answer begins with
--          2 id      that has the claim, or was promoted
--          3 new_id  "": undo the claim
--          4 lives   ms, as long as the queue may take
--          5 name    for lists
-- Returns  1 done, 0 there is no such claim
-- Needs  clock
-- luacheck: read globals now integer

local claim, sent, messages, begun, names = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, new_id, lives = ARGV[2], ARGV[3], ARGV[4]
local until_us = integer(now + lives * 1000)

local claimed = redis.call('HGET', claim, 'id') == id and 1 or 0
if new_id == '' then return claimed == 1 and redis.call('DEL', claim) or 0 end
if claimed == 1 then
  redis.call('HSET', claim, 'id', new_id, 'sent', 1)
  redis.call('PEXPIRE', claim, lives)
  if names ~= KEYS[1] then redis.call('ZADD', names, 'GT', integer((now / 1000) + lives), ARGV[5]) end
end
if not redis.call('ZSCORE', sent, id) then return claimed end
if redis.call('SREM', begun, new_id) == 0 then
  -- Before the old one is removed: a key that is made anew would have no TTL.
  redis.call('ZADD', sent, until_us, new_id)
  if id == new_id then return claimed end
  local message, at = unpack(redis.call('HMGET', messages, id, '\t' .. id))
  redis.call('HSET', messages, new_id, message, '\t' .. new_id, at or '')
end
redis.call('ZREM', sent, id)
redis.call('HDEL', messages, id, '\t' .. id)
return claimed
