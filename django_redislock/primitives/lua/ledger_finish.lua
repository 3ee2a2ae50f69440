-- Write down how a run has ended. Idempotent.
--
-- KEYS     1 ledger, as in ledger.lua
-- ARGV     1 id
--          2 outcome
--          3 why
-- Returns  what is now written of the run; or nil: it is not known any more

local ledger = KEYS[1]
-- include ledger.lua

local id, outcome, why = ARGV[1], ARGV[2], ARGV[3]

local run = redis.call('HGET', ledger, id)
if not run then
  return false
end
-- Who ran it knows better than who found its lease gone.
local _, _, _, written = parts(run)
if written == 'running' or written == 'lost' then
  local time = redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  run = close(id, run, now, outcome, why)
  if outcome == 'done' then redis.call('HSET', ledger, 'done', now) end
end
return run
