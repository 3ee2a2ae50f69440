-- Pause a periodic job: its ticks are passed over from now on. A run that is open continues; one that
-- was requested before, and not begun, is not wanted any more.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 the word that the answer begins with
--          2 by   without "|"
--          3 why
-- Returns  1
-- Needs  clock, ledger
-- luacheck: read globals now integer ledger take_request YEAR

local by, why = ARGV[2], ARGV[3]

if not redis.call('HGET', ledger, 'claimed') then
  redis.call('HSET', ledger, 'claimed', integer(now))
end
redis.call('HSET', ledger, 'paused', integer(now) .. '|' .. by .. '|' .. why)
take_request()
redis.call('PEXPIRE', ledger, YEAR)
return 1
