-- Write the result of the work under a lock. Sent twice, it does no harm; sent by a process whose lease has
-- ended, it does not overwrite the record of the next holder.
--
-- KEYS     1 record  string
--          2 lock    as in mutex_grant.lua
--          3 gone    as in lock.lua
-- ARGV     1 token; the answer begins with it
--          2 value
--          3 ttl     ms; "" without an end
-- Returns  {1}               written
--          {0, value, gone}  refused: the value at the lock, why our token may not have it
-- Needs  value, record
-- luacheck: read globals keep token_of

local record, lock, gone = KEYS[1], KEYS[2], KEYS[3]

local holder = redis.call('GET', lock)
if token_of(holder) ~= ARGV[1] then return {0, holder, redis.call('GET', gone)} end
keep(record, ARGV[2], ARGV[3])
return {1}
