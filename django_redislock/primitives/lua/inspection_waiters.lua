-- Some of the waiters of a lock, in order.
--
-- KEYS     1 queue  2 waiters  (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          2 first  time of arrival of the first one, µs, or "-inf"
--          3 limit
-- Returns  {now µs, {token, time of arrival µs, what the waiter says or nil}, ...}
-- Needs  clock
-- luacheck: read globals now integer

local waiting, waiters, first, limit = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local queue = redis.pcall('ZRANGE', waiting, first, '+inf', 'BYSCORE', 'LIMIT', 0, limit,
  'WITHSCORES')
local found = {integer(now)}
-- The key of the queue is of another type: one line says so.
if queue.err then found[2] = {'', '', false} end
for i = 1, #queue, 2 do
  local says = redis.pcall('HGET', waiters, queue[i])
  found[#found + 1] = {queue[i], integer(queue[i + 1]), type(says) == 'string' and says}
end
return found
