-- Delete the record beside a lock.
--
-- KEYS     1 record  string
-- ARGV     1 the word that the answer begins with
-- Returns  1, or 0 when nothing was there

return redis.call('DEL', KEYS[1])
