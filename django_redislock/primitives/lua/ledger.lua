-- Part: the ledger of a periodic job.
--
-- KEYS   the last one  ledger  hash. A script for several jobs sets it for one after the other:
--          claimed  the last tick that was claimed or passed over, µs
--          paused   at, µs|by|why; absent: it is not paused
--          open     the id of the run that has not ended
--          done     when a run was last done, µs
--          seen     when a scheduler that stays last looked, µs; absent: none has, or --once has since
--          request  at, µs|id|by: a run that an operator wants; at is "": it has been taken
--          runs     ids of the last runs, the oldest first, each followed by a space
--          <id>     planned, µs|started, µs|ended, µs|outcome|attempt|fencing token|owner|why
-- Gives  ledger, parts, readable, instant, ids_of, fence_of, enter, close, request_of, take_request, YEAR
-- Needs  value
-- luacheck: read globals parts_of

local ledger = KEYS[#KEYS]

-- The number of runs that are kept, besides the one that has not ended.
local KEPT = 20
-- A ledger that nobody reads is removed after this time, in ms: the job no longer exists.
local YEAR = 31622400000

-- The eight parts of the entry of a run.
local function parts(run)
  return string.match(run,
    '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

-- The entry of a run if it has the form above; else false: something else wrote it, or it is damaged.
local function readable(run)
  return run and string.find(run, '^%d*|%d*|%d*|%a+|%d+|%d*|[^|]*|') and run
end

-- A time in µs, or nil if it can't be read.
local function instant(text)
  return text and #text <= 17 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- The ids of the last runs. Longer texts are cut, since other programs may have written them.
local function ids_of(runs)
  return string.sub(runs or '', -2000)
end

-- The fencing token of a lock's value.
local function fence_of(value)
  local _, _, fence = parts_of(value or '')
  return fence
end

-- Enter a new run, and forget the oldest.
local function enter(id, run)
  local ids = ids_of(redis.call('HGET', ledger, 'runs')) .. id .. ' '
  redis.call('HSET', ledger, id, run)
  local kept = {}
  for each in string.gmatch(ids, '%S+') do
    kept[#kept + 1] = each
  end
  local open = redis.call('HGET', ledger, 'open')
  while #kept > KEPT do
    local oldest = table.remove(kept, 1)
    if oldest ~= open and oldest ~= id then redis.call('HDEL', ledger, oldest) end
  end
  redis.call('HSET', ledger, 'runs', table.concat(kept, ' ') .. ' ')
  redis.call('PEXPIRE', ledger, YEAR)
end

-- Enter the end of a run. Returns its new entry.
local function close(id, run, ended, outcome, why)
  local planned, started, _, _, attempt, fence, owner = parts(run)
  run = table.concat({planned, started, ended, outcome, attempt, fence, owner, why}, '|')
  redis.call('HSET', ledger, id, run)
  if redis.call('HGET', ledger, 'open') == id then
    redis.call('HDEL', ledger, 'open')
    -- The run began so long ago that it is not among the last ones.
    if not string.find(redis.call('HGET', ledger, 'runs') or '', id, 1, true) then
      redis.call('HDEL', ledger, id)
      enter(id, run)
    end
  end
  return run
end

-- When a run was requested, µs, or nil if no request is pending; and the id of the last request.
local function request_of(text)
  local at, id = string.match(text or '', '^(%d*)|([^|]+)|')
  return instant(at), id
end

-- The request is not pending any more. Its id stays, so that the same request has no effect if its
-- message comes again.
local function take_request()
  local _, id = request_of(redis.call('HGET', ledger, 'request'))
  if id then redis.call('HSET', ledger, 'request', '|' .. id .. '|') end
end
