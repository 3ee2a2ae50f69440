-- Part: the keys and arguments that all scripts of a lock have in common.
--
-- KEYS   1 lock     its holder or holders; the type depends on the kind of lock
--        2 queue    zset     waiting token → its time of arrival, µs
--        3 waiters  hash     waiting token → last seen, µs|ttl, ms|inbox|owner|label, and behind a
--                            tab what its kind needs besides; waiting token and NEEDS → the names
--                            that a lock on several names needs all at once
--        4 tail     hash     outlives the lock: the last fencing token and the past holders;
--                            the kinds have more fields
--        5 index    zset     name → time when its lease ends, ms. On a cluster the index of all
--                            locks would be in another slot: then this is the lock's key, and
--                            nothing is listed
--        6 gone     string   why the token of ARGV 1 may never have the lock (again):
--                            "withdrawn", or "cleared|by whom|reason"
-- ARGV   1 token    32 characters
--        2 name     the member of the index
-- Gives  these names; CLUSTER; MOST

local lock, queue, waiters, tail, index, gone =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, name = ARGV[1], ARGV[2]

-- Redis serves nobody else while a script runs. So each script deals with this number of entries of a
-- queue, of expired holders or of the index, and leaves the others to the next script.
local MOST = 1000

-- On a cluster, no node knows who listens at another node, and there is no index.
local CLUSTER = index == lock
