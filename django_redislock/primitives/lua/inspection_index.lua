-- Some of the names of locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in mutex.lua
-- ARGV     1 when the lease of the first one ends, ms, or "-inf"
--          2 how many
-- Returns  {now ms, {name, when its lease ends, ms, ...}}

local time = redis.call('TIME')
return {
  string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
  redis.call('ZRANGE', KEYS[1], ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES'),
}
