-- Look at a lock without touching it.
--
-- KEYS     1 lock (as in mutex.lua)
-- Returns  nil when it is free, else {value, pttl ms, now µs}

local value = redis.call('GET', KEYS[1])
if not value then
  return false
end
local time = redis.call('TIME')
return {value, redis.call('PTTL', KEYS[1]), string.format('%.0f', time[1] * 1000000 + time[2])}
