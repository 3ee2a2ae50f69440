-- Look at a lock without touching it.
--
-- KEYS     1 lock (as in mutex_grant.lua)
-- ARGV     1 the word that the answer begins with
-- Returns  nil when it is free, else {value, pttl ms, now µs}
-- Needs  clock
-- luacheck: read globals now integer

local value = redis.call('GET', KEYS[1])
return value and {value, redis.call('PTTL', KEYS[1]), integer(now)}
