-- Write down how a run has ended. Idempotent.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 the word that the answer begins with
--          2 id
--          3 outcome
--          4 why
-- Returns  what is written of the run from now on; or nil: it is not known any more
-- Needs  clock, ledger
-- luacheck: read globals now integer ledger parts close

local id, outcome, why = ARGV[2], ARGV[3], ARGV[4]

local run = redis.call('HGET', ledger, id)
if not run then
  return false
end
-- The process that ran it knows better than the one that found its lease gone.
local _, _, _, written = parts(run)
if written == 'running' or written == 'lost' then
  run = close(id, run, integer(now), outcome, why)
  if outcome == 'done' then redis.call('HSET', ledger, 'done', integer(now)) end
end
return run
