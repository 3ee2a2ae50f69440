-- Let the next fencing token be larger than one that a database has seen. Tokens are the server's clock,
-- or more than the last token that the tail remembers; so they are too small if the tail was lost and
-- the clock was set back. The tail remembers the token that is written here until the clock has passed it.
--
-- KEYS     as in lock.lua
-- ARGV     1, 2 as in lock.lua
--          3 seen  the fencing token that was seen
--          4 yes   1: do it, 0: only look
-- Returns  {0, now µs, next}  nothing to do: the next fencing token is larger already
--          {1, now µs, next}  done; `next` is what the next token would have been
--          {2, now µs, next}  not done: another token holds a mutex, which writes its own fencing token
--                             into the tail when it ends. Hold the lock, and ask again
--          {3, now µs, next}  not done: only a look was wanted
-- luacheck: read globals now integer lock tail token token_of VALUE PAST_HOLDERS remembers

local seen, yes = tonumber(ARGV[3]), ARGV[4] == '1'
local next = math.max(now, 1 + (redis.call('HGET', tail, 'fence') or 0))

local function answer(code) return {code, integer(now), integer(next)} end

if next > seen then return answer(0) end
if not yes then return answer(3) end

-- A key of another type belongs to permits, which never write a smaller token into the tail.
local value = redis.pcall('GET', lock)
if type(value) == 'string' then
  local _, fence, acquired_at, ttl, rest = string.match(value, VALUE)
  if not fence or token_of(value) ~= token then return answer(2) end
  value = token .. '|' .. integer(seen) .. '|' .. acquired_at .. '|' .. ttl .. rest
  redis.call('SET', lock, value, 'PX', math.max(1, redis.call('PTTL', lock)))
  redis.call('HDEL', tail, fence % PAST_HOLDERS)
  redis.call('HSET', tail, seen % PAST_HOLDERS, value)
end
redis.call('HSET', tail, 'fence', integer(seen))
redis.call('PEXPIRE', tail, math.max(redis.call('PTTL', tail), remembers(0, seen)))
return answer(1)
