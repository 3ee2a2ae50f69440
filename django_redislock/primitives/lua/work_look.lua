-- Look at the tasks of one name, without touching anything.
--
-- KEYS     as in work.lua
-- ARGV     1 the word that the answer begins with
--          2 most  promoted, parked and running ones
--          3 name
-- Returns  {now µs, as in work_seen.lua}
-- Needs  lock, work_seen
-- luacheck: read globals now integer seen

return {integer(now), seen(ARGV[3], tonumber(ARGV[2]), tonumber(ARGV[2]))}
