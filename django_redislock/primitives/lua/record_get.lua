-- Read the record beside a lock.
--
-- KEYS     1 record  string
-- ARGV     1 the word that the answer begins with
-- Returns  its value, or nil

return redis.call('GET', KEYS[1])
