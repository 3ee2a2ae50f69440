-- Take all names of a mutex, usually one; or none of them, and a place in the queue of one that is held.
-- Idempotent: a lock that our token holds already, from an earlier send or because it was handed to us, is
-- kept when we get the others too, and else passed on. So a command that was sent twice, and a waiter that
-- confirms what was handed to it, are the same case.
--
-- KEYS     as in locks.lua
-- ARGV     1 as in lock.lua
--          2 ttl     ms
--          3 says    owner|label; the owner has no "|"
--          4 inbox   channel on which this process listens; "" gives up the place in the
--                    queue: this is the only try, or the last one
--          5 ticket  time of arrival from an earlier reply, or ""; it keeps our place when
--                    the queue was lost or we were passed over, and is good for every name
--          6 inherits 1 if the holder takes over a note; only for one name
-- Returns  {1, acquired at µs, fencing token of each name}          we hold them all; with the note that was
--                                                                   taken over, if there is one
--          {0, value, pttl ms, now µs, position, ticket, lasted, number}  somebody else holds the lock of
--                                                                   this number; `lasted`, of the last
--                                                                   holder, only when we give up
--          {-1, why, number}                                        this token is gone for good
--          {2, ticket}                                              ask again, at once: nobody holds
--                                                                   it, and others still stand
--                                                                   before us
-- Needs  locks, mutex_ask, note
-- luacheck: read globals acquire inherited

local answer = acquire(tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5])
if ARGV[6] == '1' and answer[1] == 1 then answer[4] = inherited() end
return answer
