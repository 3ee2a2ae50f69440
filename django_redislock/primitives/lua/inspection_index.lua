-- Some of the locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 first  when the lease of the first one ends, ms; or "": from the beginning
--          3 skip   so many of those that end then
--          4 limit
--          5 ended  from the beginning: how many leases that should have ended; the last ones to end
-- Returns  {`first` of the next request or "": these were the last ones, lock, ...}
-- Needs  clock
-- luacheck: read globals millis integer

local index, first, skip, limit = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local some
if first == '' then
  local before = redis.call('ZCOUNT', index, '-inf', '(' .. integer(millis))
  local from = math.max(0, before - ARGV[5])
  some = redis.call('ZRANGE', index, from, from + limit - 1)
else
  some = redis.call('ZRANGE', index, first, '+inf', 'BYSCORE', 'LIMIT', skip, limit)
end
local following = ''
if #some == limit then following = integer(redis.call('ZSCORE', index, some[limit])) end
return {following, unpack(some)}
