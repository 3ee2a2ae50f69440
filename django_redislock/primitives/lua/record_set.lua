-- Let a key be there for a while.
--
-- KEYS     1 key  string
-- ARGV     1 value
--          2 ttl  ms
-- Returns  "OK"

return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
