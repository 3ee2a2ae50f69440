-- Enter the end of a run. Idempotent.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 id
--          2 outcome
--          3 why
-- Returns  the new entry of the run; or nil: the run is no longer known
-- luacheck: read globals now integer ledger parts close

local id, outcome, why = ARGV[1], ARGV[2], ARGV[3]

local run = redis.call('HGET', ledger, id)
if not run then
  return false
end
-- The process of the run knows better than the process that found its lease gone.
local _, _, _, written = parts(run)
if written == 'running' or written == 'lost' then
  run = close(id, run, integer(now), outcome, why)
  if outcome == 'done' then redis.call('HSET', ledger, 'done', integer(now)) end
end
return run
