-- Part: the tombstone of a token that is released.
--
-- KEYS   somewhere gone, as in lock.lua
-- Gives  withdraw(late, held)  what was written of our token: why it may never have the lock (again). With
--          `late`, an acquire of it may still be on its way: it leaves a tombstone, so that this one is
--          refused. False if it has `held` the lock, and nothing is late
-- Needs  memory
-- luacheck: read globals gone MINUTE

local function withdraw(late, held)
  local why = (late or not held) and redis.call('GET', gone)
  if late and not why then redis.call('SET', gone, 'withdrawn', 'PX', MINUTE) end
  return why
end
