-- What the scripts of the mutex share; each of them includes this file.
--
-- KEYS  1 lock     string   token|fencing token|acquired at, µs|ttl, ms|owner|label
--       2 queue    zset     waiting token → its time of arrival, µs
--       3 waiters  hash     waiting token → last seen, µs|ttl, ms|inbox|owner|label
--       4 tail     hash     what outlives the lock: fence, released, and for how long that
--                           one lasted, µs; handed, the waiter that has not confirmed yet
--                           what was handed to it; and the last HOLDERS, the one with a
--                           fencing token in the field of its remainder: its lock, and when
--                           it has ended, behind a tab, how:
--                           released|lasted, µs  or  cleared|lasted, µs|by whom|reason
--       5 index    zset     name → time when its lease ends, ms; on a cluster, where the index of all
--                           locks would be in another slot, the lock's key: nothing is listed
--       6 gone     string   why the token of ARGV 1 may never have the lock (again):
--                           "withdrawn", or "cleared|by whom|reason"
-- ARGV  1 token    32 characters
--       2 name     the member of the index

local lock, queue, waiters, tail, index, gone =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, name = ARGV[1], ARGV[2]

-- A waiter to whom the lock was handed has so long to confirm it, in ms.
local CLAIM_WINDOW = 1000
-- A waiter is passed over when it was not seen for so long, in µs: its process is
-- stopped. It must be longer than the longest slice that waiting.py sleeps.
local SIGN_OF_LIFE = 5000000
-- The inbox of a waiter that nobody can wake; it asks again before the window is over.
local DEAF = '-'
-- What outlives a lock lives so long at least, in ms.
local MINUTE = 60000
-- So many holders are remembered, the present one among them.
local HOLDERS = 6

-- On a cluster, no node knows who listens at another, and there is no index.
local CLUSTER = index == lock

-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Lua would write a large number as 1.7e+15.
local function integer(number)
  return string.format('%.0f', number)
end

-- The index says that the lease ends then, in ms.
local function enlist(ends)
  if not CLUSTER then redis.call('ZADD', index, integer(ends), name) end
end

local function unlist()
  if not CLUSTER then redis.call('ZREM', index, name) end
end

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end

-- For how long the tail has to remember the last fencing token, in ms: until the clock is
-- well past it, also when that was set back.
local function remembers(ttl, fence)
  return outlives(ttl) + math.max(0, math.ceil((fence - now) / 1000))
end

-- The token of a lock's value. It comes first and its length is fixed, so that a
-- stranger's value can never look like ours by accident.
local function holder(value)
  return value and string.sub(value, 1, 32)
end

-- Give the free lock to `to`, for `lives` ms. Returns the fencing token: the server's
-- clock, which goes on where a counter would start again (lost data, eviction, failover),
-- unless the clock went back, which the tail knows. And up to 5 more, so that its remainder counts
-- the holders: each script knows without a read in which field one is remembered, and the next one
-- takes that of the oldest. Who is found there without an end, and not at the lock, has lost it.
local function grant(to, ttl, lives, owner, label, handed)
  local fence = now
  local least = 1 + (redis.call('HGET', tail, 'fence') or 0)
  if least > fence then fence = least end
  fence = fence + (least - fence) % HOLDERS
  local fencing_token = integer(fence)
  local field = least % HOLDERS
  local value = table.concat({to, fencing_token, integer(now), ttl, owner, label}, '|')
  -- Who was handed the lock does not hold it before it knows.
  redis.call('HSET', tail, 'fence', fencing_token, 'handed', handed or '',
    field, handed and '' or value)
  redis.call('PEXPIRE', tail, remembers(ttl, fence))
  enlist(now / 1000 + lives)
  -- Names whose lease ended without a release have nobody else to remove them. A name's first
  -- holder does it, and a few of the others: that is enough.
  if field == 1 and not CLUSTER then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', integer(now / 1000 - MINUTE))
  end
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
  redis.call('SET', lock, value, 'PX', lives)
  return fencing_token
end

local function leave_queue(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('HDEL', waiters, waiter)
end

-- Whether somebody is at an inbox: a process that was killed listens no more. Of a waiter that
-- can't listen (its connection is away), and for a user who may not ask (which is an error),
-- the sign of life has to do. PUBLISH would count, too, but also those with a pattern.
local function listens(inbox)
  if inbox == DEAF or CLUSTER then return true end
  local answer = redis.pcall('PUBSUB', 'NUMSUB', inbox)
  return answer.err or answer[2] > 0
end

-- Hand the free lock to the first waiter that can be reached, and tell it. Returns its
-- token; or `caller` when everybody before it is gone; or nil when nobody waits.
local function hand_over(caller)
  local unseen
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first and unseen then
      -- Nobody was seen lately: rather than all of them, this server was stopped, or its clock
      -- was set. The first has it, and the others have been told, and come back in order.
      grant(unseen.waiter, unseen.ttl, CLAIM_WINDOW, unseen.owner, unseen.label, unseen.waiter)
      return unseen.waiter
    end
    if not first or first == caller then return first end
    local waiter = redis.call('HGET', waiters, first)
    leave_queue(first)
    if waiter then
      local seen, ttl, inbox, owner, label =
        string.match(waiter, '^(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$')
      ttl = tonumber(ttl)
      redis.pcall('PUBLISH', inbox, first)
      if listens(inbox) then
        if now - seen < SIGN_OF_LIFE then
          grant(first, ttl, CLAIM_WINDOW, owner, label, first)
          return first
        end
        unseen = unseen or {waiter = first, ttl = ttl, owner = owner, label = label}
      end
    end
  end
end
