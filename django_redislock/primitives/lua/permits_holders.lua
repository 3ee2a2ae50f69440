-- Look at who holds a place without touching anything.
--
-- KEYS     1 lock  2 holders  (as in permits.lua)
-- ARGV     1 how many at most
-- Returns  {now µs, {what one says of itself or nil, pttl ms, token}, ...}, the one whose lease ends
--          first comes first

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local alive = string.format('(%.0f', now)
local found = {string.format('%.0f', time[1] * 1000000 + time[2])}
local ends = redis.call('ZRANGE', KEYS[1], alive, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[1],
  'WITHSCORES')
for i = 1, #ends, 2 do
  found[#found + 1] = {redis.call('HGET', KEYS[2], ends[i]), ends[i + 1] - now, ends[i]}
end
return found
