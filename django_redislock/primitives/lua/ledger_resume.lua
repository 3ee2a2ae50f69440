-- End the rest of a periodic job. What came due meanwhile is not caught up with.
--
-- KEYS     1 ledger, as in ledger.lua
-- Returns  1; or 0: it was not paused

local ledger = KEYS[1]

if redis.call('HDEL', ledger, 'paused') == 0 then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Also back from a time to come, which it has when the clock was wrong.
redis.call('HSET', ledger, 'claimed', string.format('%.0f', now))
return 1
