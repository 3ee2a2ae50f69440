-- Part: look at locks of the index, without writing anything.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     2 most   as in inspection_locks.lua; 0: keys are wanted, and no lock is looked at
-- Gives  look_at(locks, found)  append {key, lock as in inspection.lua or nil: it was not looked at,
--          ...} to `found`, and return how many of these locks nobody holds
-- luacheck: read globals seen looked_at keys_of

local most = tonumber(ARGV[2])

local function look_at(locks, found)
  local gone = 0
  for _, lock in ipairs(locks) do
    local its = looked_at < most and seen(keys_of(lock), KEYS[1], most)
    if its and not its[1] and not its[3] then
      gone = gone + 1
    else
      found[#found + 1] = lock
      found[#found + 1] = its
    end
  end
  return gone
end
