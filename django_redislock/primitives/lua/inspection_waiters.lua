-- Some of those who wait for a lock, in order.
--
-- KEYS     1 queue  2 waiters  (as in mutex.lua)
-- ARGV     1 time of arrival, µs, of the first one, or "-inf"
--          2 limit
-- Returns  {now µs, {token, time of arrival µs, what the waiter says or nil}, ...}

local time = redis.call('TIME')
local queue = redis.pcall('ZRANGE', KEYS[1], ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2],
  'WITHSCORES')
local found = {string.format('%.0f', time[1] * 1000000 + time[2])}
-- Something else is at the key of the queue: one line says so.
if queue.err then found[2] = {'', '', false} end
for i = 1, #queue, 2 do
  local says = redis.pcall('HGET', KEYS[2], queue[i])
  found[#found + 1] = {queue[i], queue[i + 1], type(says) == 'string' and says}
end
return found
