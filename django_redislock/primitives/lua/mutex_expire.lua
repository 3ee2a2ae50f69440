-- Give the lock another time to live, for redis-py's Lock.extend() and reacquire(): it may be
-- shorter than the time that the lock has, or be added to that time. Not idempotent, as there.
--
-- KEYS     as in mutex_grant.lua
-- ARGV     1 as in lock.lua
--          2 lives  ms
--          3 how    "add" to the time that it has, "replace" that time, or "repair": replace it even
--                   if the lock has lost its TTL
-- Returns  1: it lives for so long; or 0: it is not held, or has no TTL
-- Needs  locks, index
-- luacheck: read globals now integer lock token token_of mark_of enlist

local lives, how = tonumber(ARGV[2]), ARGV[3]

local value = redis.call('GET', lock)
local pttl = redis.call('PTTL', lock)
if token_of(value) ~= token or (pttl < 0 and how ~= 'repair') then
  return 0
end

if how == 'add' then lives = lives + pttl end
redis.call('PEXPIRE', lock, integer(lives))
if mark_of(value) ~= '|' then enlist(now / 1000 + lives) end
return 1
