-- Request a run of a periodic job: the first scheduler that looks takes it. As long as a request is
-- pending, another one changes nothing. Idempotent.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 the word that the answer begins with
--          2 id        of the request
--          3 by        without "|"
--          4 good for  µs; then a request that nobody has taken is not pending any more
-- Returns  the request that counts, as in ledger.lua: this one, or an earlier one
-- Needs  clock, ledger
-- luacheck: read globals now integer ledger request_of YEAR

local id, by, good_for = ARGV[2], ARGV[3], tonumber(ARGV[4])

local known = redis.call('HGET', ledger, 'request')
local at, its_id = request_of(known)
if its_id == id or at and at <= now and now - at <= good_for then
  return known
end
local request = integer(now) .. '|' .. id .. '|' .. by
redis.call('HSET', ledger, 'request', request)
redis.call('PEXPIRE', ledger, YEAR)
return request
