-- Part: how much is remembered of a lock that is free again, and for how long; and how much one script does.
--
-- Gives  MINUTE                 everything that outlives a lock lives at least so long, ms
--        PAST_HOLDERS           so many past holders are remembered
--        MOST                   so many entries does one script deal with
--        outlives(ttl)          the time to live of a record about a lease of `ttl` ms, in ms

local MINUTE = 60000
local PAST_HOLDERS = 6
-- Redis serves nobody else while a script runs. So each script deals with so many entries of a
-- queue, of expired holders or of the index, and leaves the others to the next script.
local MOST = 1000

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end
