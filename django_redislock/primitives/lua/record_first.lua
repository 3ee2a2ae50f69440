-- Write a record unless there is one. Idempotent: sent again, it finds its own value. (SET with NX and GET
-- at once would need Redis 7.)
--
-- KEYS     1 record  string
-- ARGV     1 the word that the answer begins with
--          2 value
--          3 ttl     ms; "" for good
-- Returns  the value that stands
-- Needs  record
-- luacheck: read globals keep

local record, value, ttl = KEYS[1], ARGV[2], ARGV[3]

local stands = redis.call('GET', record)
if stands then
  return stands
end
keep(record, value, ttl)
return value
