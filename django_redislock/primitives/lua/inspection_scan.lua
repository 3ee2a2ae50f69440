-- Some of the keys of the database, of any type.
--
-- ARGV     1 cursor  2 pattern  3 how many to look at
-- Returns  {cursor, {key, ...}}; the last cursor is 0

return redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
