-- Let a key be there for a while.
--
-- KEYS     1 key  string
-- ARGV     1 the word that the answer begins with
--          2 value
--          3 ttl  ms
-- Returns  "OK"

return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
