-- Some of the locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 most   as in inspection_listed.lua
--          3 first  4 last, of those wanted: ranks
-- Returns  {now µs, number of entries of the index, locks as in inspection_listed.lua ...}
-- luacheck: read globals now integer look_at

local index = KEYS[1]
local found = {integer(now), redis.call('ZCARD', index)}
look_at(redis.call('ZRANGE', index, ARGV[3], ARGV[4]), found)
return found
