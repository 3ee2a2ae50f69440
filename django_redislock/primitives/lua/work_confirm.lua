-- Let the claim of a message live on, perhaps under the id that the queue has given; or undo it. A claim
-- of another message is left alone.
--
-- KEYS     1 lock  2 claim  3 names  (as in work.lua)
-- ARGV     1 the word that the answer begins with
--          2 id      that has the claim
--          3 new_id  "": undo it
--          4 lives   ms
--          5 name    for lists
-- Returns  1 done, 0 there is no such claim
-- luacheck: read globals now integer

local claim, new_id = KEYS[2], ARGV[3]

if redis.call('HGET', claim, 'id') ~= ARGV[2] then return 0 end
if new_id == '' then
  redis.call('DEL', claim)
else
  redis.call('HSET', claim, 'id', new_id)
  redis.call('PEXPIRE', claim, ARGV[4])
  if KEYS[3] ~= KEYS[1] then
    redis.call('ZADD', KEYS[3], 'GT', integer(math.floor(now / 1000) + ARGV[4]), ARGV[5])
  end
end
return 1
