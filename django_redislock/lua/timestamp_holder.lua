-- Look at a lock without touching it.
--
-- KEYS     1 lock  2 tail  (as in timestamp.lua)
-- Returns  nil when it is free or its time is over, else {holder, remains ms, now µs}

-- include timestamp.lua

local value = redis.call('GET', KEYS[1])
local holder = holder_of(KEYS[2], value)
return holder and {holder, remains(value), integer(now)}
