-- Part: waiters that need several names at once.
--
-- KEYS   as in locks.lua
-- Gives  busy       the locks that others hold, as this script has seen: key → number
-- Sets   elsewhere  for hand_over()
-- Needs  history, queue
-- luacheck: read globals NEEDS MINUTE list look
-- luacheck: globals lock queue waiters elsewhere

local busy = {}

-- A waiter that was handed a lock while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, that is a request of each of them.
elsewhere = function(waiter, entry)
  if not next(busy) then return false end
  local needs = redis.call('HGET', waiters, waiter .. NEEDS)
  for other in string.gmatch(needs or '', '[^\n]+') do
    if busy[other] then
      local before = 6 * (busy[other] - 1)
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
