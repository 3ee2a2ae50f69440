-- The names of locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in mutex.lua
-- ARGV     1 first  2 last, as ZRANGE has them
-- Returns  {how many there are, {name, ...}}

return {redis.call('ZCARD', KEYS[1]), redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])}
