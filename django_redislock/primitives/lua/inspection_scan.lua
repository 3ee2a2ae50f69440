-- Some of the keys of the database, of any type.
--
-- ARGV     1 the word that the answer begins with
--          2 cursor  3 pattern  4 how many to look at
-- Returns  {cursor, {key, ...}}; the last cursor is 0

return redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
