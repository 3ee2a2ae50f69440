-- A page of the names of locks, in the order in which their leases end. A lease that should have ended may
-- still be held, if somebody removed the TTL of its key: these names come first, in a list of their own.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 first  2 end: the wanted positions among all names
--          3 most   names to return whose leases should have ended: the last ones to end
-- Returns  {number of leases that should still live, {names whose leases should have ended, ...},
--          {names of the others, ...}}; `first` counts as if all of the first list were held
-- luacheck: read globals now integer

local index, first, last, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local millis = integer(math.floor(now / 1000))
local before = redis.call('ZCOUNT', index, '-inf', '(' .. millis)
local ended, live = {}, {}
if before > 0 then
  ended = redis.call('ZRANGE', index, math.max(0, before - most), before - 1)
end
local from = before + math.max(0, first - #ended)
if last > first then
  live = redis.call('ZRANGE', index, from, before + last - 1)
end
return {redis.call('ZCARD', index) - before, ended, live}
