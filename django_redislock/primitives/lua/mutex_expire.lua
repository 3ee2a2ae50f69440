-- Give the lock another time to live, for redis-py's Lock.extend() and reacquire(): it may be
-- shorter than the time that the lock has, or be added to that time. Not idempotent, as there.
--
-- KEYS     as in mutex_grant.lua
-- ARGV     1, 2 as in lock.lua
--          3 lives  ms
--          4 how    "add" to the time that it has, "replace" that time, or "repair": replace it even
--                   if the lock has lost its TTL
-- Returns  {1}         it has this time to live now
--          {0, value}  not held, or without a TTL; the value at the lock
-- luacheck: read globals now integer lock tail token token_of VALUE enlist remembers

local lives, how = tonumber(ARGV[3]), ARGV[4]

local value = redis.call('GET', lock)
local pttl = redis.call('PTTL', lock)
if token_of(value) ~= token or (pttl < 0 and how ~= 'repair') then
  return {0, value}
end

if how == 'add' then lives = lives + pttl end
redis.call('PEXPIRE', lock, integer(lives))
enlist(now / 1000 + lives)
-- The last fencing token has to be known when the lock has ended.
local _, fence = string.match(value, VALUE)
if redis.call('PEXPIRE', tail, remembers(lives, fence)) == 0 then
  redis.call('HSET', tail, 'fence', fence)
  redis.call('PEXPIRE', tail, remembers(lives, fence))
end
return {1}
