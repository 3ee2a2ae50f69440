-- Some of the locks, in the order in which their leases end.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 first  3 last, of those wanted: ranks
-- Returns  {number of entries of the index, lock, ...}

return {redis.call('ZCARD', KEYS[1]), unpack(redis.call('ZRANGE', KEYS[1], ARGV[2], ARGV[3]))}
