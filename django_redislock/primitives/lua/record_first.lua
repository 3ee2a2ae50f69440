-- Write a record unless there is one. Idempotent: sent again, it finds the value that it wrote. (SET
-- with NX and GET at once would need Redis 7.)
--
-- KEYS     1 record  string
-- ARGV     1 value
--          2 ttl     ms; "" without an end
-- Returns  the value of the record
-- luacheck: read globals keep

local record, value, ttl = KEYS[1], ARGV[1], ARGV[2]

local stands = redis.call('GET', record)
if stands then
  return stands
end
keep(record, value, ttl)
return value
