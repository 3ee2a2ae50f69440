-- What the scripts of a lock do to its index, to be included after lock.lua.

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

local function unlist_ended()
  if not CLUSTER then
    -- include index_ended.lua
  end
end
