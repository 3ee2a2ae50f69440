-- Look at a lock without touching it.
--
-- KEYS     as in timestamp_keys.lua
-- Returns  nil when it is free or its time is over, else {holder, remains ms, now µs}
-- Needs  timestamp_keys, timestamp
-- luacheck: read globals now integer lock holder_of remains

local value = redis.call('GET', lock)
local holder = holder_of(value)
return holder and {holder, remains(value), integer(now)}
