-- Look at the holders without touching anything.
--
-- KEYS     1 lock  2 holders  (as in permits.lua)
-- ARGV     1 the word that the answer begins with
--          2 limit  how many at most
-- Returns  {now µs, each as in holders.lua, ...}
-- Needs  holders
-- luacheck: read globals now integer holders_of

return {integer(now), unpack(holders_of(KEYS[1], KEYS[2], ARGV[2], redis.call))}
