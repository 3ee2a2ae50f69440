-- Claim a tick of a periodic job and take the job's lock, in one step: so a tick has one run at a time,
-- and whoever has the run also has the lock. Idempotent: sent again with the same id, it finds the run
-- its own.
--
-- KEYS     1 to 8 as in locks.lua; 9 ledger, as in ledger.lua
-- ARGV     1 as in lock.lua
--          2 ttl       ms
--          3 says      owner|label; the owner has no "|"
--          4 id        of the run, if there will be one
--          5 tick      µs; "": no tick, a run is wanted now
--          6 ready     when it may be started, µs
--          7 deadline  until when, µs; "": at any time
--          8 overlap   "skip", "wait" or "replace": what to do if the lock is held
--          9 attempts  so many for a tick whose runs lose their leases
--          10 request  the id of the request that the run answers; "": none
-- Returns  {1 or 0, what, now µs, run, a, b, closed id, closed run}: 1 for "run", with the note that it
--            takes over, if there is one; what is
--            "run"      it is ours; a: fencing token, b: when the lock was acquired, µs
--            "skipped"  this tick is passed over; run says why, a is its id
--            "early"    a: µs until it is ready
--            "taken"    a: the last tick that was claimed, µs; or the request is not pending any more
--            "paused"   so this tick is not tried again
--            "busy"     a: who holds the lock, b: for how many ms; or a lost run is tried again first
--            "running"  the same, of a run that is to be replaced: steal its lock, and ask again
--            "again"    ask again, at once, as in mutex_acquire.lua
--          and closed is a run that turned out to be lost; or "", ""
-- Needs  locks, mutex_grant, mutex_confirm, queue, note, ledger
-- luacheck: read globals now integer lock queue gone token parts_of confirm grant hand_over
-- luacheck: read globals ledger parts readable instant fence_of enter close request_of
-- luacheck: read globals take_request inherited token_of

-- A lock that no run holds is waited for so long, in µs, even by a job that does not wait.
local GIVING_BACK = 1000000

local ttl, says, id, tick = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local ready, deadline, overlap, attempts = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local request = ARGV[10]
local owner = string.match(says, '^[^|]*')

local value = redis.call('GET', lock)
local claimed, open, paused = unpack(redis.call('HMGET', ledger, 'claimed', 'open', 'paused'))
claimed = instant(claimed) or 0
local run = open and readable(redis.call('HGET', ledger, open))

local closed_id, closed_run = '', ''
local function answer(what, its_run, a, b)
  return {what == 'run' and 1 or 0, what, integer(now), its_run or '', a or '', b or '',
    closed_id, closed_run, what == 'run' and inherited() or nil}
end

local ours, orphan, its_tick, its_attempt = false, false, '', 0
if run then
  local fence, _
  its_tick, _, _, _, its_attempt, fence = parts(run)
  its_attempt = tonumber(its_attempt)
  ours = open == id
  orphan = fence ~= fence_of(value)
  if ours and not orphan then
    -- As an acquire does: the sender believes in another ttl from this sending on.
    return answer('run', run, confirm(value, ttl))
  end
end

-- Write down as lost the open run, whose process is gone.
local function bury()
  if orphan and not ours then
    closed_id = open
    closed_run = close(open, run, integer(now), 'lost', 'its lease ended before it did')
  end
end

-- Of ticks that are passed over for the same reason, only the last one is kept: else a long pause
-- would push out the runs before it.
local function forget_skipped(why)
  local ids = redis.call('HGET', ledger, 'runs') or ''
  local last = string.match(ids, '(%S+) $')
  local _, _, _, outcome, _, _, _, its_why = parts(last and redis.call('HGET', ledger, last) or '')
  if outcome == 'skipped' and its_why == why then
    redis.call('HDEL', ledger, last)
    redis.call('HSET', ledger, 'runs', string.sub(ids, 1, -#last - 2))
  end
end

local function skip(why, once)
  bury()
  if tick ~= '' then
    redis.call('HSET', ledger, 'claimed', tick)
  else
    take_request()
  end
  local skipped = table.concat({tick, '', integer(now), 'skipped', 0, '', owner, why}, '|')
  if once then forget_skipped(why) end
  enter(id, skipped)
  return answer('skipped', skipped, id)
end

-- Another attempt at the tick of a run that has lost its lease.
local again = ours or (orphan and tick ~= '' and its_tick == tick and its_attempt < attempts)
local attempt = 1
if again then
  attempt = ours and its_attempt or its_attempt + 1
  if not ours and paused then
    return answer('paused')
  end
elseif tick ~= '' then
  if tonumber(tick) <= claimed then
    if its_attempt >= attempts then bury() end
    return answer('taken', '', integer(claimed))
  end
  if now < tonumber(ready) then
    return answer('early', '', integer(tonumber(ready) - now))
  end
  if paused then
    local by, why = string.match(paused, '^[^|]*|([^|]*)|(.*)$')
    return skip(by and 'paused by ' .. by .. ': ' .. why or 'paused', true)
  end
elseif request ~= '' then
  local at, its_id = request_of(redis.call('HGET', ledger, 'request'))
  if not at or its_id ~= request then
    return answer('taken', '', integer(claimed))
  end
  if orphan and its_tick ~= '' and its_attempt < attempts and not paused then
    return answer('busy', '', '', 0)
  end
end
if not again and deadline ~= '' and now > tonumber(deadline) then
  return skip(string.format('too late, by %.1f s', (now - tonumber(deadline)) / 1000000))
end

if redis.call('EXISTS', gone) == 1 then
  return answer('taken', '', integer(claimed))
end
if not value and redis.call('EXISTS', queue) == 1 then
  -- It belongs to the first waiter. Waiters that are all dead don't keep the job from running.
  local first, more = hand_over(grant)
  if more then return answer('again') end
  if first then value = redis.call('GET', lock) end
end
if value and token_of(value) ~= token then
  if tick ~= '' and not again and overlap == 'replace' and run and not orphan then
    return answer('running', '', value, redis.call('PTTL', lock))
  end
  -- If no run is open, somebody is most likely releasing it at this very moment.
  local held = run or now - tonumber(ready) > GIVING_BACK
  if tick ~= '' and not again and overlap == 'skip' and held then
    local _, _, _, _, _, its_says = parts_of(value)
    local its_owner = string.match(its_says or '', '^[^|]*')
    return skip('the lock was held by ' .. (its_owner ~= '' and its_owner or 'others'))
  end
  return answer('busy', '', value, redis.call('PTTL', lock))
end

bury()
local fencing_token = grant(token, ttl, ttl, says, value and '+' or '|')
run = table.concat({tick, integer(now), '', 'running', attempt, fencing_token, owner, ''}, '|')
redis.call('HSET', ledger, 'open', id)
if tick ~= '' and tonumber(tick) > claimed then
  redis.call('HSET', ledger, 'claimed', tick)
end
if request ~= '' and not ours then take_request() end
if ours then
  redis.call('HSET', ledger, id, run)
else
  enter(id, run)
end
return answer('run', run, fencing_token, integer(now))
