-- Read the record beside a lock.
--
-- KEYS     1 record  string
-- Returns  its value, or nil

return redis.call('GET', KEYS[1])
