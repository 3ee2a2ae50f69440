-- What the scripts of the mutex share, to be included after lock.lua.
--
-- KEYS  as in lock.lua, of which here
--       1 lock     string   token|fencing token|acquired at, µs|ttl, ms|owner|label
--       4 tail     hash     what outlives the lock: fence, released, and for how long that
--                           one lasted, µs; handed, the waiter that has not confirmed yet
--                           what was handed to it; and the last HOLDERS, the one with a
--                           fencing token in the field of its remainder: its lock, and when
--                           it has ended, behind a tab, how:
--                           released|lasted, µs  or  cleared|lasted, µs|by whom|reason
-- ARGV  1, 2 as in lock.lua

-- include index.lua

-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'

-- The token of a lock's value. It comes first and its length is fixed, so that a
-- stranger's value can never look like ours by accident.
local function holder(value)
  return value and string.sub(value, 1, 32)
end

-- Gives the free lock away, as in mutex_grant.lua; returns the fencing token.
local function grant(to, ttl, lives, owner, label, handed)
  -- include mutex_grant.lua
  return fencing_token
end
