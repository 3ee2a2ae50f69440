-- What the scripts for several names share: each includes it after mutex.lua, whose functions then
-- work on one name after the other.
--
-- KEYS  for each name: as in mutex.lua
-- ARGV  1, 2 as in mutex.lua: the name is the first one
--       from OTHERS on  the other names

local NAMES = #KEYS / 6

-- The names that are held by others, as this script has seen: name → number.
local busy = {}

-- What hand_over() asks. A waiter that was handed a name while another one is held would only wake,
-- pass it on and stand where this puts it: with many waiters, that is a request of each of them.
elsewhere = function(waiter, says)
  local needs = redis.call('HGET', waiters, waiter .. NEEDS)
  for other in string.gmatch(needs or '', '[^\n]+') do
    if busy[other] then
      local before = 6 * (busy[other] - 1)
      redis.call('ZADD', KEYS[before + 2], 'LT', redis.call('ZSCORE', queue, waiter), waiter)
      redis.call('HSET', KEYS[before + 3], waiter, says, waiter .. NEEDS, needs)
      redis.call('PEXPIRE', KEYS[before + 2], MINUTE)
      redis.call('PEXPIRE', KEYS[before + 3], MINUTE)
      return true
    end
  end
  return false
end

-- From here on, mutex.lua speaks of the name of this number. The first of the other names stands
-- at `others` in ARGV.
local function turn_to(number, others)
  local before = 6 * (number - 1)
  lock, queue, waiters = KEYS[before + 1], KEYS[before + 2], KEYS[before + 3]
  tail, index, gone = KEYS[before + 4], KEYS[before + 5], KEYS[before + 6]
  name = number == 1 and ARGV[2] or ARGV[others + number - 2]
end
