-- What has holders and a queue: what the scripts of mutexes, semaphores and read-write locks are
-- given, the time, and for how long things are remembered. Each of them begins with this file. What
-- makes more functions comes as late as can be: most locks are free, and while Redis does other work
-- in between, each function that is made takes its time.
--
-- KEYS  1 lock     who holds it; see there
--       2 queue    zset     waiting token → its time of arrival, µs
--       3 waiters  hash     waiting token → last seen, µs|ttl, ms|inbox|owner|label, and behind a
--                           tab what else its kind has to know; waiting token and NEEDS → the
--                           names that it needs all at once, where these are several
--       4 tail     hash     what outlives the lock: fence, and the last HOLDERS; see there
--       5 index    zset     name → time when its lease ends, ms; on a cluster, where the index of all
--                           locks would be in another slot, the lock's key: nothing is listed
--       6 gone     string   why the token of ARGV 1 may never have the lock (again):
--                           "withdrawn", or "cleared|by whom|reason"
-- ARGV  1 token    32 characters
--       2 name     the member of the index

local lock, queue, waiters, tail, index, gone =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, name = ARGV[1], ARGV[2]

-- What outlives a lock lives so long at least, in ms.
local MINUTE = 60000
-- So many holders are remembered.
local HOLDERS = 6
-- Redis serves nobody else while a script runs, so each one deals with so many entries of a queue, of
-- expired holders or of the index, and leaves the others to the next script.
local MOST = 1000

-- On a cluster, no node knows who listens at another, and there is no index.
local CLUSTER = index == lock

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end

-- For how long the tail has to remember the last fencing token, in ms: until the lease and what may
-- be asked about it is over, and the clock well past it, also when that was set back. Of a free lock
-- (a ttl of 0) that is a minute.
local function remembers(ttl, fence)
  return outlives(ttl) + math.max(0, math.ceil((fence - now) / 1000))
end
