-- What the scripts for several names share: each includes it after mutex.lua, whose functions then
-- work on one name after the other.
--
-- KEYS  for each name: as in mutex.lua
-- ARGV  1, 2 as in mutex.lua: the name is the first one
--       from OTHERS on  the other names

local NAMES = #KEYS / 6

-- From here on, mutex.lua speaks of the name of this number. The first of the other names stands
-- at `others` in ARGV.
local function turn_to(number, others)
  local before = 6 * (number - 1)
  lock, queue, waiters = KEYS[before + 1], KEYS[before + 2], KEYS[before + 3]
  tail, index, gone = KEYS[before + 4], KEYS[before + 5], KEYS[before + 6]
  name = number == 1 and ARGV[2] or ARGV[others + number - 2]
end
