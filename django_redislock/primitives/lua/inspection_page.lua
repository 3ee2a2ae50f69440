-- A page of locks, in the order in which their leases end. A lease that should have ended may still be
-- held, since somebody has taken the TTL from its key: these locks come first.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 most   as in inspection_listed.lua
--          3 first  4 end, of those wanted: positions among all
--          5 ended  how many leases that should have ended to look at: the last ones to end
-- Returns  {now µs, number of locks, locks as in inspection_listed.lua ...}
-- luacheck: read globals now integer look_at

local index, first, last = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local before = redis.call('ZCOUNT', index, '-inf', '(' .. integer(math.floor(now / 1000)))
local still = {}
if before > 0 then
  for _, lock in ipairs(redis.call('ZRANGE', index, math.max(0, before - ARGV[5]), before - 1)) do
    if redis.call('EXISTS', lock) == 1 then still[#still + 1] = lock end
  end
end
local wanted = {}
for position = first + 1, math.min(last, #still) do wanted[#wanted + 1] = still[position] end
if last > #still then
  local from, to = math.max(0, first - #still), last - #still - 1
  for _, lock in ipairs(redis.call('ZRANGE', index, before + from, before + to)) do
    wanted[#wanted + 1] = lock
  end
end
local found = {integer(now), 0}
local gone = look_at(wanted, found)
found[2] = #still + redis.call('ZCARD', index) - before - gone
return found
