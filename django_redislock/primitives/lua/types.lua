-- Part: a check before an operator's script writes anything.
--
-- Gives  check_types()  end the script with an error if a key beside the lock has another type. Else
--                       half of the work would be done when the error came
-- luacheck: read globals queue waiters history

local function check_types()
  redis.call('ZCARD', queue)
  redis.call('HLEN', waiters)
  redis.call('LLEN', history)
end
