-- What the scripts of the ledger share; `ledger` is its key.
--
-- ledger  hash  claimed  the last tick that was claimed or passed over, µs
--               paused   at, µs|by|why; absent: it is not
--               open     the id of the run that has not ended
--               done     when a run was last done, µs
--               runs     ids of the last runs, the oldest first, each followed by a space
--               <id>     planned, µs|started, µs|ended, µs|outcome|attempt|fencing token|owner|why

-- So many runs are kept; besides them only one that has not ended.
local KEPT = 20
-- What nobody looks at any more goes after so long, in ms: the job has been removed.
local YEAR = 31622400000

local function parts(run)
  return string.match(run,
    '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

-- A run that is written as above; false: others have written it, or it is damaged.
local function readable(run)
  return run and string.find(run, '^%d*|%d*|%d*|%a+|%d+|%d*|[^|]*|') and run
end

-- A time in µs; nil: it can't be read.
local function instant(text)
  return text and #text <= 17 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- The ids of the last runs. There are no more than fit in here, whoever has written them.
local function ids_of(runs)
  return string.sub(runs or '', -2000)
end

-- The fencing token of a lock's value.
local function fence_of(value)
  return value and string.match(value, '^[^|]*|(%d+)|')
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

-- Write down how a run has ended. Returns what is now written of it.
local function close(id, run, ended, outcome, why)
  local planned, started, _, _, attempt, fence, owner = parts(run)
  run = table.concat({planned, started, ended, outcome, attempt, fence, owner, why}, '|')
  redis.call('HSET', ledger, id, run)
  if redis.call('HGET', ledger, 'open') == id then
    redis.call('HDEL', ledger, 'open')
    -- One that began so long ago that it is not among the last ones.
    if not string.find(redis.call('HGET', ledger, 'runs') or '', id, 1, true) then
      redis.call('HDEL', ledger, id)
      enter(id, run)
    end
  end
  return run
end
