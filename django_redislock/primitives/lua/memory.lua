-- Part: how much is remembered of a lock that is free again, and for how long.
--
-- Gives  MINUTE                 everything that outlives a lock lives at least so long, ms
--        PAST_HOLDERS           so many past holders are remembered
--        outlives(ttl)          the time to live of a record about a lease of `ttl` ms, in ms

local MINUTE = 60000
local PAST_HOLDERS = 6

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end
