-- What stands beside a lock is refused before anything is done where it is of another type: else half
-- of the work would be done, and the answer would be an error. To be included after lock.lua.

redis.call('ZCARD', queue)
redis.call('HLEN', waiters)
redis.call('HLEN', tail)
