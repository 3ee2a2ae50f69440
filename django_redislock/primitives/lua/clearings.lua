-- Count locks that an operator has cleared, for metrics.
--
-- KEYS     1 counter  string
-- ARGV     1 the word that the answer begins with
--          2 how many
-- Returns  all that were cleared at this server

return redis.call('INCRBY', KEYS[1], ARGV[2])
