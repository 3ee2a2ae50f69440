-- Write what came of the work under a mutex, and release it, as mutex_release.lua.
--
-- KEYS     1 to 8 as in locks.lua
--          9 record  string
-- ARGV     1 to 3 as in mutex_release.lua
--          4 value
--          5 ttl     ms; "" for good
--          6 held    1: write it only while the token holds the lock. 0: also when its lease has ended,
--                    as long as nobody else holds the lock and the token was not withdrawn or cleared
-- Returns  as mutex_release.lua
-- Needs  locks, mutex_release_names, record
-- luacheck: read globals lock gone token token_of look keep release_names, globals own_inbox

local value = look(lock)
if token_of(value) == token or (ARGV[6] == '0' and not value and not redis.call('GET', gone)) then
  keep(KEYS[9], ARGV[4], ARGV[5])
end
own_inbox = ARGV[3]
return release_names(ARGV[2] == '1')
