-- Some of the names of locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 first  when the lease of the first name ends, ms, or "-inf"
--          2 limit
-- Returns  {now ms, {name, when its lease ends, ms, ...}}
-- luacheck: read globals now integer

local index, first, limit = KEYS[1], ARGV[1], ARGV[2]
return {
  integer(math.floor(now / 1000)),
  redis.call('ZRANGE', index, first, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES'),
}
