-- Part: several locks in one script. The functions of the mutex work on one after the other.
--
-- KEYS   for each lock: lock, queue, waiters, history, gone (as in lock.lua); then perhaps guard (as in
--        guard.lua); then index, clock. On a cluster the index is the first lock's key, as in lock.lua
-- Gives  LOCKS              their number
--        turn_to(number)    let all functions work on the lock of this number from now on
--        grant_all          as grant() in mutex_grant.lua, for all locks that a waiter needs
-- Sets   elsewhere          for hand_over()
-- luacheck: read globals NEEDS MINUTE CLUSTER list look grant
-- luacheck: globals lock queue waiters history gone elsewhere

local LOCKS = math.floor((#KEYS - 2) / 5)

-- The locks that this script may look at on a cluster. Without one, it also looks at other locks that
-- its waiters need, and at their queues: no client can know their keys.
local here = {}
for i = 1, LOCKS do here[KEYS[5 * i - 4]] = true end

-- The locks that a waiter needs, if all others are free.
local needs_of = {}
-- The locks to whose queues waiters were moved.
local moved = {}

-- Whether a waiter that has arrived at that time can't have a lock now: somebody holds it, or waits for it
-- since before.
local function taken(other, arrival)
  if redis.call('EXISTS', other) == 1 then return true end
  local first = redis.call('ZRANGE', other .. ':queue', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) < tonumber(arrival)
end

-- A waiter that was handed a lock while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, that is a request of each of them.
elsewhere = function(waiter, entry)
  local needs = redis.call('HGET', waiters, waiter .. NEEDS)
  local arrival = needs and redis.call('ZSCORE', queue, waiter)
  local all = {}
  for other in string.gmatch(needs or '', '[^\n]+') do
    if other ~= lock and (here[other] or not CLUSTER) then
      if taken(other, arrival) then
        redis.call('ZADD', other .. ':queue', 'LT', arrival, waiter)
        redis.call('HSET', other .. ':waiters', waiter, entry, waiter .. NEEDS, needs)
        if not moved[other] then
          moved[other] = true
          redis.call('PEXPIRE', other .. ':queue', MINUTE)
          redis.call('PEXPIRE', other .. ':waiters', MINUTE)
          local before = lock
          lock = other
          local value = look(other)
          if value then list(value, redis.call('PTTL', other)) end
          lock = before
        end
        return true
      end
      table.insert(all, other)
    end
  end
  needs_of[waiter] = all
  return false
end

local function grant_all(to, ...)
  local first = lock
  for _, other in ipairs(needs_of[to] or {}) do
    lock = other
    grant(to, ...)
  end
  lock = first
  return grant(to, ...)
end

local function turn_to(number)
  local before = 5 * (number - 1)
  lock, queue, waiters, history, gone =
    KEYS[before + 1], KEYS[before + 2], KEYS[before + 3], KEYS[before + 4], KEYS[before + 5]
end
