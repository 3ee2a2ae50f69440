-- Part: the time, and the text of whole numbers.
--
-- Gives  now, millis    µs and ms since the epoch, by the server's clock
--        integer(n)     the text of a whole number; Lua itself would write a large one as 1.7e+15

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local millis = math.floor(now / 1000)

local function integer(number)
  return string.format('%.0f', number)
end
