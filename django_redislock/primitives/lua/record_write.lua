-- Write the result of the work under a lock. Sent twice, it does no harm; sent by a process whose lease has
-- ended, it does not overwrite the record of the next holder.
--
-- KEYS     1 record  string
--          2 lock    as in mutex_grant.lua
--          3 gone    as in lock.lua
-- ARGV     1 token; the answer begins with it
--          2 value
--          3 ttl     ms; "" without an end
--          4 held    1: only while the token holds the lock. 0: also after its lease has ended, as
--                    long as nobody else holds the lock and the token was not withdrawn or cleared
-- Returns  {1}               written
--          {0, value, gone}  refused: the value at the lock, why our token may not have it
-- luacheck: read globals keep token_of

local record, lock, gone = KEYS[1], KEYS[2], KEYS[3]
local token, value, ttl, held = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

local holder = redis.call('GET', lock)
if token_of(holder) ~= token then
  local why = redis.call('GET', gone)
  if held or holder or why then
    return {0, holder, why}
  end
end

keep(record, value, ttl)
return {1}
