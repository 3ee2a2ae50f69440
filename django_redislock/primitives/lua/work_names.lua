-- Names of tasks that wait, are parked or run, for lists.
--
-- KEYS     1 lock  2 names  (as in work.lua)
-- ARGV     1 the word that the answer begins with
--          2 skip  3 limit
-- Returns  {name, ...}
-- luacheck: read globals now integer

if KEYS[1] == KEYS[2] then return {} end  -- a cluster
return redis.call('ZRANGE', KEYS[2], integer(math.floor(now / 1000)), '+inf', 'BYSCORE',
  'LIMIT', ARGV[2], ARGV[3])
