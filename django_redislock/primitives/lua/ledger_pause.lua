-- Let a periodic job rest: its ticks are passed over from now on. A run goes on to its end.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 by   without "|"
--          2 why
-- Returns  1

local ledger = KEYS[1]
-- include ledger.lua

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
if not redis.call('HGET', ledger, 'claimed') then
  redis.call('HSET', ledger, 'claimed', now)
end
redis.call('HSET', ledger, 'paused', now .. '|' .. ARGV[1] .. '|' .. ARGV[2])
redis.call('PEXPIRE', ledger, YEAR)
return 1
