-- The facts that a scheduler needs about its jobs. An unknown job begins now: no earlier tick belongs to
-- it.
--
-- KEYS     for each job: lock, ledger
-- ARGV     1 the word that the answer begins with
-- Returns  {now µs, then for each job {claimed µs, tick of its open run or "", left ms}}, where
--          left is the rest of that run's lease; negative: it has ended; claimed is ""
--          if something else is at the ledger's key, or in its field
-- luacheck: read globals now integer instant readable parts fence_of YEAR, globals ledger

local replies = {integer(now)}
for i = 1, #KEYS, 2 do
  local lock = KEYS[i]
  ledger = KEYS[i + 1]
  local claimed, run, tick, left = '', false, '', -1
  local known = redis.pcall('HGET', ledger, 'claimed')
  -- A table is an error: the key has another type. The other jobs need not fail for that.
  if type(known) ~= 'table' then
    claimed = not known and integer(now) or instant(known) and known or ''
    if not known then redis.call('HSET', ledger, 'claimed', integer(now)) end
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
