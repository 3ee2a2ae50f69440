-- Give the lock another time to live, for redis-py's Lock.extend() and reacquire(): it may be
-- shorter than what the lock has, or be added to that. Not idempotent, as there.
--
-- KEYS     as in mutex.lua
-- ARGV     1, 2 as in mutex.lua
--          3 lives  ms
--          4 how    "add" to what it has, or "replace" that; "repair": also where the lock has
--                   lost its end
-- Returns  {1}         it lives for so long
--          {0, value}  not held, or without an end; who holds it

-- include lock.lua
-- include mutex.lua

local lives, how = tonumber(ARGV[3]), ARGV[4]

local value = redis.call('GET', lock)
local pttl = redis.call('PTTL', lock)
if holder(value) ~= token or (pttl < 0 and how ~= 'repair') then
  return {0, value}
end

if how == 'add' then lives = lives + pttl end
redis.call('PEXPIRE', lock, integer(lives))
enlist(now / 1000 + lives)
-- The last fencing token has to be known when the lock has ended.
local fence = string.match(value, '^[^|]*|(%d+)|')
if redis.call('PEXPIRE', tail, remembers(lives, fence)) == 0 then
  redis.call('HSET', tail, 'fence', fence)
  redis.call('PEXPIRE', tail, remembers(lives, fence))
end
return {1}
