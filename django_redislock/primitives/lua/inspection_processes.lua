-- How long processes still count as alive.
--
-- KEYS     for each process: the key of its sign of life
-- Returns  for each: pttl in ms, or -2

local left = {}
for i = 1, #KEYS do left[i] = redis.call('PTTL', KEYS[i]) end
return left
