-- What a scheduler has to know of its jobs. A job that nobody knew begins now: what was planned
-- before is none of it.
--
-- KEYS     for each job: lock, ledger
-- Returns  {now µs, then for each job {claimed µs, tick of its open run or "", left ms}}, where
--          left is what the lease of that run still lives; negative: it is gone; claimed is ""
--          when something else is at the ledger's key, or in its place

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local ledger
-- include ledger.lua

local replies = {now}
for i = 1, #KEYS, 2 do
  local lock = KEYS[i]
  ledger = KEYS[i + 1]
  local claimed, run, tick, left = '', false, '', -1
  local known = redis.pcall('HGET', ledger, 'claimed')
  -- A table is an error, when it is of another type: no reason to fail the other jobs.
  if type(known) ~= 'table' then
    claimed = not known and now or instant(known) and known or ''
    if not known then redis.call('HSET', ledger, 'claimed', now) end
    if redis.call('PTTL', ledger) < YEAR * 0.9 then redis.call('PEXPIRE', ledger, YEAR) end
    local open = redis.call('HGET', ledger, 'open')
    run = open and readable(redis.call('HGET', ledger, open))
  end
  if run then
    local fence, _
    tick, _, _, _, _, fence = parts(run)
    local value = redis.pcall('GET', lock)
    if type(value) ~= 'table' and fence_of(value) == fence then
      left = redis.call('PTTL', lock)
    end
  end
  replies[#replies + 1] = {claimed, tick, left}
end
return replies
