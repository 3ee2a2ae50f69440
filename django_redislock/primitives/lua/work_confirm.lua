-- Let the claim of a message live on, perhaps under the id that the queue has given; or undo it. A claim
-- of another message is left alone.
--
-- KEYS     1 claim  (as in work.lua)
-- ARGV     1 the word that the answer begins with
--          2 id      that has the claim
--          3 new_id  "": undo it
--          4 lives   ms
-- Returns  1 done, 0 there is no such claim

local claim, new_id = KEYS[1], ARGV[3]

if redis.call('HGET', claim, 'id') ~= ARGV[2] then return 0 end
if new_id == '' then
  redis.call('DEL', claim)
else
  redis.call('HSET', claim, 'id', new_id)
  redis.call('PEXPIRE', claim, ARGV[4])
end
return 1
