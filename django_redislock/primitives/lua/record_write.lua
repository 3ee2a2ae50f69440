-- Write down beside a lock what came of the work under it. Sent twice, it does no harm; sent by
-- one whose lease is over, it does not speak for the next.
--
-- KEYS     1 record  string
--          2 lock    as in mutex.lua
--          3 gone    as in mutex.lua
-- ARGV     1 token
--          2 value
--          3 ttl     ms; "" for good
--          4 held    1: only while the token holds the lock. 0: also when its lease has ended, as
--                    long as nobody else holds the lock and the token was not withdrawn or cleared
-- Returns  {1}               written
--          {0, value, gone}  refused: who holds the lock now, what was written of our token

-- include record.lua

local record, lock, gone = KEYS[1], KEYS[2], KEYS[3]
local token, value, ttl, held = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

local now = redis.call('GET', lock)
if not now or string.sub(now, 1, 32) ~= token then
  local why = redis.call('GET', gone)
  if held or now or why then
    return {0, now, why}
  end
end

keep(record, value, ttl)
return {1}
