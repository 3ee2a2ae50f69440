-- For how long processes are still believed to live.
--
-- KEYS     for each process: where it shows a sign of life
-- ARGV     1 the word that the answer begins with
-- Returns  for each: pttl in ms, or -2

local left = {}
for i = 1, #KEYS do left[i] = redis.call('PTTL', KEYS[i]) end
return left
