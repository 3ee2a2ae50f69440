-- Part: several names in one script. The functions of the mutex work on one name after the other.
--
-- KEYS   for each name: as in mutex_grant.lua
-- ARGV   1, 2 as in lock.lua: the name is the first one
--        the other names follow somewhere, up to the end
-- Gives  NAMES                    their number
--        busy                     the names that others hold, as this script has seen: name → number
--        turn_to(number, others)  let all functions work on the name of this number from now on; the
--                                 first of the other names stands at `others` in ARGV
-- Sets   elsewhere                for hand_over()
-- luacheck: read globals NEEDS MINUTE
-- luacheck: globals lock queue waiters tail index gone name elsewhere

local NAMES = #KEYS / 6

local busy = {}

-- A waiter that was handed a name while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, each of them would send a request for it.
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

local function turn_to(number, others)
  local before = 6 * (number - 1)
  lock, queue, waiters = KEYS[before + 1], KEYS[before + 2], KEYS[before + 3]
  tail, index, gone = KEYS[before + 4], KEYS[before + 5], KEYS[before + 6]
  name = number == 1 and ARGV[2] or ARGV[others + number - 2]
end
