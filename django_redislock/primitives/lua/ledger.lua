-- Part: the ledger of a periodic job.
--
-- Takes  ledger  its key, a hash:
--          claimed  the last tick that was claimed or passed over, µs
--          paused   at, µs|by|why; absent: it is not paused
--          open     the id of the run that has not ended
--          done     when a run was last done, µs
--          runs     ids of the last runs, the oldest first, each followed by a space
--          <id>     planned, µs|started, µs|ended, µs|outcome|attempt|fencing token|owner|why
-- Gives  parts, readable, instant, ids_of, fence_of, enter, close, YEAR
-- luacheck: read globals VALUE ledger

-- So many runs are kept, and besides them the one that has not ended.
local KEPT = 20
-- A ledger that nobody looks at goes after so long, in ms: the job has been removed.
local YEAR = 31622400000

-- The eight parts of what is written of a run.
local function parts(run)
  return string.match(run,
    '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

-- A run that is written as above, or false: something else has written it, or it is damaged.
local function readable(run)
  return run and string.find(run, '^%d*|%d*|%d*|%a+|%d+|%d*|[^|]*|') and run
end

-- A time in µs, or nil if it can't be read.
local function instant(text)
  return text and #text <= 17 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- The ids of the last runs. Longer texts are cut, whatever has written them.
local function ids_of(runs)
  return string.sub(runs or '', -2000)
end

-- The fencing token of a lock's value.
local function fence_of(value)
  local _, fence = string.match(value or '', VALUE)
  return fence
end

-- Write down a new run, and forget the oldest.
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

-- Write down how a run has ended. Returns what is written of it from now on.
local function close(id, run, ended, outcome, why)
  local planned, started, _, _, attempt, fence, owner = parts(run)
  run = table.concat({planned, started, ended, outcome, attempt, fence, owner, why}, '|')
  redis.call('HSET', ledger, id, run)
  if redis.call('HGET', ledger, 'open') == id then
    redis.call('HDEL', ledger, 'open')
    -- A run that began so long ago that it is not among the last ones.
    if not string.find(redis.call('HGET', ledger, 'runs') or '', id, 1, true) then
      redis.call('HDEL', ledger, id)
      enter(id, run)
    end
  end
  return run
end
