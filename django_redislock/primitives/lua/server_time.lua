-- The server's time.
--
-- KEYS     1 any key of the server that is asked
-- ARGV     1 the word that the answer begins with
-- Returns  now µs
-- Needs  clock
-- luacheck: read globals now integer

return integer(now)
