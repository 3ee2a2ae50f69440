-- What the scripts of the mutex share; each of them includes this file.
--
-- KEYS  1 lock     string   token|fencing token|acquired at, µs|ttl, ms|owner|label
--       2 queue    zset     waiting token → its time of arrival, µs
--       3 waiters  hash     waiting token → last seen, µs|ttl, ms|inbox|owner|label
--       4 tail     hash     what outlives the lock: fence, released
--       5 index    zset     name → time when its lease ends, ms
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
-- What outlives a lock lives so long at least, in ms.
local MINUTE = 60000

-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Lua would write a large number as 1.7e+15.
local function integer(number)
  return string.format('%.0f', number)
end

local function outlives(ttl)
  return math.max(MINUTE, 3 * ttl)
end

-- The token of a lock's value. It comes first and its length is fixed, so that a
-- stranger's value can never look like ours by accident.
local function holder(value)
  return value and string.sub(value, 1, 32)
end

-- Give the free lock to `to`, for `lives` ms. Returns the fencing token: the server's
-- clock, which goes on where a counter would start again (lost data, eviction, failover),
-- unless the clock went back, which the tail knows.
local function grant(to, ttl, lives, owner, label)
  local fence = now
  local last = tonumber(redis.call('HGET', tail, 'fence') or 0)
  if last >= fence then fence = last + 1 end
  local fencing_token = integer(fence)
  redis.call('HSET', tail, 'fence', fencing_token)
  redis.call('PEXPIRE', tail, outlives(ttl))
  redis.call('ZADD', index, integer(now / 1000 + lives), name)
  -- Names whose lease ended without a release have nobody else to remove them.
  redis.call('ZREMRANGEBYSCORE', index, '-inf', integer(now / 1000 - MINUTE))
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
  redis.call('SET', lock,
    table.concat({to, fencing_token, integer(now), ttl, owner, label}, '|'), 'PX', lives)
  return fencing_token
end

local function leave_queue(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('HDEL', waiters, waiter)
end

-- Hand the free lock to the first waiter that can be reached, and tell it. Returns its
-- token; or `caller` when everybody before it is gone; or nil when nobody waits.
local function hand_over(caller)
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first or first == caller then return first end
    local waiter = redis.call('HGET', waiters, first)
    leave_queue(first)
    if waiter then
      local seen, ttl, inbox, owner, label =
        string.match(waiter, '^(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$')
      -- PUBLISH returns how many listened: a process that was killed listens no more.
      -- A user who may not publish gets an error; then the sign of life has to do.
      local told = redis.pcall('PUBLISH', inbox, first)
      if now - seen < SIGN_OF_LIFE and (type(told) == 'table' or told > 0) then
        grant(first, tonumber(ttl), CLAIM_WINDOW, owner, label)
        return first
      end
    end
  end
end
