-- Some of the keys of locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 first  when the lease of the first one ends, ms, or "-inf"
--          3 limit
-- Returns  {now ms, {key, when its lease ends, ms, ...}}
-- luacheck: read globals now integer

local index, first, limit = KEYS[1], ARGV[2], ARGV[3]
return {
  integer(math.floor(now / 1000)),
  redis.call('ZRANGE', index, first, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES'),
}
