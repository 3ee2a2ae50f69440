-- How many locks operators have cleared at this server.
--
-- KEYS     1 counter  as in clearings.lua
-- ARGV     1 the word that the answer begins with
-- Returns  the number, or nil: none, or the counter is of another type

local number = redis.pcall('GET', KEYS[1])
return type(number) == 'string' and number or false
