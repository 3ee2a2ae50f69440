-- Part: several locks in one script. The functions of the mutex work on one after the other.
--
-- KEYS   for each lock: lock, queue, waiters, history, gone (as in lock.lua); then perhaps guard (as in
--        guard.lua); then index, clock. On a cluster the index is the first lock's key, as in lock.lua
-- Gives  LOCKS              their number
--        turn_to(number)    let all functions work on the lock of this number from now on
--        grant_all          as grant() in mutex_grant.lua, for all locks that a waiter needs
-- Sets   elsewhere          for hand_over()
-- luacheck: read globals NEEDS MINUTE CLUSTER list look grant token leave_queue seen_lately
-- luacheck: globals lock queue waiters history gone elsewhere

local LOCKS = math.floor((#KEYS - 2) / 5)

-- The locks that this script may look at on a cluster. Without one, it also looks at other locks that
-- its waiters need, and at their queues: no client can know their keys.
local here = {}
for i = 1, LOCKS do here[KEYS[5 * i - 4]] = true end

-- The locks that a waiter needs besides, and can have now.
local needs_of = {}
-- Whether a waiter that has arrived at that time can't have a lock now: somebody holds it, or waits for it
-- since before.
local function taken(other, arrival)
  if redis.call('EXISTS', other) == 1 then return true end
  local first = redis.call('ZRANGE', other .. ':queue', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) < tonumber(arrival)
end

-- So many waiters are looked at together, which takes much less time than one after the other.
local TOGETHER = 50

-- Returns the key of a lock that a waiter needs besides, and can't have now; or nil, and all that it needs
-- besides.
local function missing(needs, arrival)
  local others = {}
  for other in string.gmatch(needs, '[^\n]+') do
    if other ~= lock and (here[other] or not CLUSTER) then
      if taken(other, arrival) then return other end
      table.insert(others, other)
    end
  end
  return nil, others
end

-- A waiter that was handed a lock while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, that is a request of each of them.
elsewhere = function(most)
  local first = redis.call('ZRANGE', queue, 0, math.min(most, TOGETHER) - 1, 'WITHSCORES')
  if not first[1] then return 0 end
  local fields = {}
  for i = 1, #first, 2 do
    table.insert(fields, first[i])
    table.insert(fields, first[i] .. NEEDS)
  end
  local said = redis.call('HMGET', waiters, unpack(fields))
  local leaving, places = {}, {}
  for i = 1, #first, 2 do
    local waiter, arrival, entry, needs = first[i], first[i + 1], said[i], said[i + 1]
    if waiter == token or not needs or not seen_lately(entry) then break end
    local other, others = missing(needs, arrival)
    if not other then
      needs_of[waiter] = others
      break
    end
    table.insert(leaving, waiter)
    local place = places[other] or {scores = {}, fields = {}}
    places[other] = place
    table.insert(place.scores, arrival)
    table.insert(place.scores, waiter)
    for _, word in ipairs({waiter, entry, waiter .. NEEDS, needs}) do
      table.insert(place.fields, word)
    end
  end
  if not leaving[1] then return 0 end
  for other, place in pairs(places) do
    redis.call('ZADD', other .. ':queue', 'LT', unpack(place.scores))
    redis.call('HSET', other .. ':waiters', unpack(place.fields))
    redis.call('PEXPIRE', other .. ':queue', MINUTE)
    redis.call('PEXPIRE', other .. ':waiters', MINUTE)
    local before, value = lock, look(other)
    lock = other
    if value then list(value, redis.call('PTTL', other)) end
    lock = before
  end
  leave_queue(unpack(leaving))
  return #leaving
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
