-- Part: several locks in one script. The functions of the mutex work on one after the other.
--
-- KEYS   for each lock: lock, queue, waiters, history, gone (as in lock.lua); then perhaps guard (as in
--        guard.lua); then index, clock. On a cluster the index is the first lock's key, as in lock.lua
-- Gives  LOCKS              their number
--        busy               the locks that others hold, as this script has seen: key → number
--        turn_to(number)    let all functions work on the lock of this number from now on
-- Sets   elsewhere          for hand_over()
-- luacheck: read globals NEEDS MINUTE list look
-- luacheck: globals lock queue waiters history gone elsewhere

local LOCKS = math.floor((#KEYS - 2) / 5)

local busy = {}

-- A waiter that was handed a lock while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, that is a request of each of them.
elsewhere = function(waiter, entry)
  local needs = redis.call('HGET', waiters, waiter .. NEEDS)
  for other in string.gmatch(needs or '', '[^\n]+') do
    if busy[other] then
      local before = 5 * (busy[other] - 1)
      redis.call('ZADD', KEYS[before + 2], 'LT', redis.call('ZSCORE', queue, waiter), waiter)
      redis.call('HSET', KEYS[before + 3], waiter, entry, waiter .. NEEDS, needs)
      redis.call('PEXPIRE', KEYS[before + 2], MINUTE)
      redis.call('PEXPIRE', KEYS[before + 3], MINUTE)
      local here = lock
      lock = other
      list(look(other), redis.call('PTTL', other))
      lock = here
      return true
    end
  end
  return false
end

local function turn_to(number)
  local before = 5 * (number - 1)
  lock, queue, waiters, history, gone =
    KEYS[before + 1], KEYS[before + 2], KEYS[before + 3], KEYS[before + 4], KEYS[before + 5]
end
