-- End the pause of a periodic job. Ticks that came due meanwhile are not caught up with.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 the word that the answer begins with
-- Returns  1; or 0: it was not paused
-- Needs  clock, ledger
-- luacheck: read globals now integer ledger

if redis.call('HDEL', ledger, 'paused') == 0 then
  return 0
end
-- A clock that was wrong may have left a time in the future here: this is corrected, too.
redis.call('HSET', ledger, 'claimed', integer(now))
return 1
