-- Count what happens seldom, for metrics and for the doctor.
--
-- KEYS     1 counter  string
-- ARGV     1 the word that the answer begins with
--          2 how many
-- Returns  all that were counted at this server

-- GET and SET: a Redis user may have been allowed no INCRBY.
local before = redis.call('GET', KEYS[1])
local number = (tonumber(before or 0) or 0) + ARGV[2]
redis.call('SET', KEYS[1], string.format('%.0f', number))
return number
