-- A page of the keys of locks, in the order in which their leases end. A lease that should have ended may
-- still be held, since somebody has taken the TTL from its key: these keys come first, by themselves.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 first  3 end, of those wanted: positions among all keys
--          4 most   keys to return whose leases should have ended: the last ones to end
-- Returns  {number of leases that should still live, {keys whose leases should have ended, ...},
--          {keys of the others, ...}}; `first` counts as if all the former were held
-- luacheck: read globals now integer

local index, first, last, most = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
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
