-- Part: a check before a script for an operator writes anything.
--
-- Gives  check_types()  end the script with an error if a key beside the lock has another type. Otherwise
--                       half of the work would be done before the error
-- luacheck: read globals queue waiters tail

local function check_types()
  redis.call('ZCARD', queue)
  redis.call('HLEN', waiters)
  redis.call('HLEN', tail)
end
