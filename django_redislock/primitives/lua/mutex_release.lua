-- Give back all names of a mutex, or the place in a queue; each is handed to its next waiter.
-- Repeated, it changes nothing: it does not find the locks its own.
--
-- KEYS     as in locks.lua
-- ARGV     1 as in lock.lua
--          2 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
--          3 own_inbox the inbox of this process, if the answer is to name its waiters; or "". Only for
--                      one name: with several, a waiter may need others besides
--          4 forgets   1: the work is done, and the note of the first name is removed
-- Returns  {1}                       released
--          {1, now µs, granted}      and these tokens of this process have it now, each with its fencing
--                                    token
--          {0, value, gone, number}  the lock of this number, and perhaps others, was not held: who holds
--                                    it now, what was written of our token
-- Needs  locks, mutex_release_names
-- luacheck: read globals lock noted token token_of look release_names, globals own_inbox

own_inbox = ARGV[3]
if ARGV[4] == '1' and token_of(look(lock)) == token then redis.call('DEL', noted) end
return release_names(ARGV[2] == '1')
