-- Part: the memory of a lock that is free again, and its duration.
--
-- Gives  MINUTE                 the least time, in ms, that anything that outlives a lock is kept
--        PAST_HOLDERS           the number of past holders in the tail
--        outlives(ttl)          the time to live of a record about a lease of `ttl` ms, in ms
--        remembers(ttl, fence)  the time to live of the tail, in ms
-- luacheck: read globals now

local MINUTE = 60000
local PAST_HOLDERS = 6

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end

-- The tail keeps the last fencing token until the lease is over, nobody asks about it any more, and
-- the clock is well past the token, even if the clock was set back. A free lock has a ttl of 0.
local function remembers(ttl, fence)
  return outlives(ttl) + math.max(0, math.ceil((fence - now) / 1000))
end
