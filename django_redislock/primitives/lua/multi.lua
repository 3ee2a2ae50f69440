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
-- So many waiters are looked at together, which takes much less time than one after the other: at first,
-- and later.
local FIRST, LATER = 2, 50

-- Returns the key of a lock that a waiter needs besides and can't have now: somebody holds it, or waits for
-- it since before. Else nil, and all that it needs besides. `held` remembers which locks are held.
local function missing(needs, arrival, held)
  local others = {}
  for other in string.gmatch(needs, '[^\n]+') do
    if other ~= lock and (here[other] or not CLUSTER) then
      if held[other] == nil then held[other] = redis.call('EXISTS', other) == 1 end
      if held[other] then return other end
      local first = redis.call('ZRANGE', other .. ':queue', 0, 0, 'WITHSCORES')
      if first[2] and tonumber(first[2]) < tonumber(arrival) then return other end
      table.insert(others, other)
    end
  end
  return nil, others
end

-- Let waiters wait for this lock, which is not the one that the functions work on.
local function receive(other, scores, fields)
  redis.call('ZADD', other .. ':queue', 'LT', unpack(scores))
  redis.call('HSET', other .. ':waiters', unpack(fields))
  redis.call('PEXPIRE', other .. ':queue', MINUTE)
  redis.call('PEXPIRE', other .. ':waiters', MINUTE)
  local before, value = lock, look(other)
  lock = other
  if value then list(value, redis.call('PTTL', other)) end
  lock = before
end

-- A waiter that was handed a lock while another one is held would only wake, pass it on and stand where
-- this function puts it: with many waiters, that is a request of each of them.
elsewhere = function(most)
  local all, together, held = 0, FIRST, {}
  while all < most do
    local first = redis.call('ZRANGE', queue, 0, math.min(most - all, together) - 1, 'WITHSCORES')
    if not first[1] then return all end
    local asked = {}
    for i = 1, #first, 2 do
      asked[i], asked[i + 1] = first[i], first[i] .. NEEDS
    end
    local said = redis.call('HMGET', waiters, unpack(asked))
    local leaving, scores, fields = {}, {}, {}
    for i = 1, #first, 2 do
      local waiter, arrival, entry, needs = first[i], first[i + 1], said[i], said[i + 1]
      if waiter == token or not needs or not seen_lately(entry) then break end
      local other, others = missing(needs, arrival, held)
      if not other then
        needs_of[waiter] = others
        break
      end
      local s, f = scores[other] or {}, fields[other] or {}
      scores[other], fields[other] = s, f
      s[#s + 1], s[#s + 2] = arrival, waiter
      f[#f + 1], f[#f + 2], f[#f + 3], f[#f + 4] = waiter, entry, waiter .. NEEDS, needs
      leaving[#leaving + 1] = waiter
    end
    for other, its in pairs(scores) do receive(other, its, fields[other]) end
    if leaving[1] then leave_queue(unpack(leaving)) end
    all = all + #leaving
    if 2 * #leaving < #first then return all end
    together = LATER
  end
  return all
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
