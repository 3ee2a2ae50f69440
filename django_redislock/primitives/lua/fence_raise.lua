-- Let the next fencing token be larger than one that a database has seen. Tokens are the server's clock,
-- or more than the last one that the tail remembers; so they are too small where the tail was lost and
-- the clock was set back. The tail remembers what is written here until the clock has passed it.
--
-- KEYS     as in mutex.lua
-- ARGV     1, 2 as in mutex.lua
--          3 seen  the fencing token that was seen
--          4 yes   1: do it, 0: only look
-- Returns  {0, now µs, next}  nothing to do: the next fencing token is larger already
--          {1, now µs, next}  done; `next` is what it would have been
--          {2, now µs, next}  not done: another token holds a mutex, which writes its own fencing token
--                             into the tail when it ends. Hold the lock, and ask again
--          {3, now µs, next}  not done: it was only to be looked at

-- include lock.lua
-- include index.lua

local seen = tonumber(ARGV[3])
local next = math.max(now, 1 + (redis.call('HGET', tail, 'fence') or 0))

local function answer(code) return {code, integer(now), integer(next)} end

if next > seen then return answer(0) end
if ARGV[4] ~= '1' then return answer(3) end

-- What is of another type has places, which never write less into the tail than it has.
local value = redis.pcall('GET', lock)
if type(value) == 'string' then
  local before, fence, after = string.match(value, '^([^|]*|)(%d+)(|.*)$')
  if not before or string.sub(value, 1, 32) ~= token then return answer(2) end
  value = before .. integer(seen) .. after
  redis.call('SET', lock, value, 'PX', math.max(1, redis.call('PTTL', lock)))
  redis.call('HDEL', tail, fence % HOLDERS)
  redis.call('HSET', tail, seen % HOLDERS, value)
end
redis.call('HSET', tail, 'fence', integer(seen))
redis.call('PEXPIRE', tail, math.max(redis.call('PTTL', tail), remembers(0, seen)))
return answer(1)
