-- Let the next fencing token be larger than one that a database has seen. Tokens are the server's clock,
-- or more than the last one that was given; so they are too small where data were lost and the clock was
-- set back. What is written here counts until the clock has passed it.
--
-- KEYS     1 lock  2 clock  3 index  (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          2 seen  the fencing token that was seen
--          3 yes   1: do it, 0: only look
-- Returns  {0, now µs, next}  nothing to do: the next fencing token is larger already
--          {1, now µs, next}  done; `next` is what it would have been
--          {2, now µs, next}  not done: only a look was wanted
--          {3, now µs, next}  as 1 or 2; the last fencing token can't be read
-- Needs  fence_last
-- luacheck: read globals now integer last_of set_last

local lock, clock, index = KEYS[1], KEYS[2], KEYS[3]
local seen, yes = tonumber(ARGV[2]), ARGV[3] == '1'
local last = last_of(clock)
local next = math.max(now, 1 + (last or 0))

local function answer(code) return {code, integer(now), integer(next)} end

if last and next > seen then return answer(0) end
if not yes then return answer(last and 2 or 3) end
if not last then seen = math.max(seen, now) end
set_last(clock, seen, index == lock)  -- a cluster, as in fence.lua
return answer(last and 1 or 3)
