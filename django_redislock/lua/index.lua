-- What the scripts of a lock do to its index and its tail, to be included after lock.lua.

-- Lua would write a large number as 1.7e+15.
local function integer(number)
  return string.format('%.0f', number)
end

-- The index says that the lease ends then, in ms.
local function enlist(ends)
  if not CLUSTER then redis.call('ZADD', index, integer(ends), name) end
end

local function unlist()
  if not CLUSTER then redis.call('ZREM', index, name) end
end

-- Names whose lease ended without a release have nobody else to remove them.
local function unlist_ended()
  if not CLUSTER then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', integer(now / 1000 - MINUTE))
  end
end

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end

-- For how long the tail has to remember the last fencing token, in ms: until the lease and what may
-- be asked about it is over, and the clock well past it, also when that was set back. Of a free lock
-- (a ttl of 0) that is a minute.
local function remembers(ttl, fence)
  return outlives(ttl) + math.max(0, math.ceil((fence - now) / 1000))
end
