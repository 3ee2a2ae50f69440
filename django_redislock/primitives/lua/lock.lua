-- Part: the keys and the argument that the scripts of permits have in common.
--
-- KEYS   1 lock     who holds it; its type depends on the kind of lock
--        2 queue    zset     waiting token → its time of arrival, µs
--        3 waiters  hash     waiting token → last seen, µs|ttl, ms|inbox|owner|label, and behind a
--                            tab what its kind needs besides; waiting token and NEEDS → the keys
--                            of the locks that it needs all at once
--        4 history  list     the last holders that held it for a second or ended badly, as in
--                            history.lua
--        5 gone     string   why the token of ARGV 1 may never have the lock (again):
--                            "withdrawn", or "cleared|by whom|reason"
--        6 index    zset     key of a lock → time when its lease ends, ms. On a cluster the index of
--                            all locks would be in another slot: then this is the lock's key, and
--                            nothing is listed
--        7 clock    string   the last fencing token given at this server; on a cluster, given for
--                            this lock
-- ARGV   1 token    32 characters; the answer begins with it
-- Gives  these names

local lock, queue, waiters, history, gone, index, clock =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token = ARGV[1]
local noted = ''  -- only a mutex has notes
