-- For how long processes are still believed to live.
--
-- KEYS     for each process: where it shows a sign of life
-- Returns  for each: pttl in ms, or -2

local left = {}
for i = 1, #KEYS do left[i] = redis.call('PTTL', KEYS[i]) end
return left
