-- How much was counted at this server.
--
-- KEYS     1 counter  as in count.lua
-- ARGV     1 the word that the answer begins with
-- Returns  the number, or nil: none, or the counter is of another type

local number = redis.pcall('GET', KEYS[1])
return type(number) == 'string' and number or false
