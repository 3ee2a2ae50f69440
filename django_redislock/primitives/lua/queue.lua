-- Part: the waiters. How somebody joins or leaves the queue, and how what is free is handed on. It comes
-- as late as can be: most locks are free, and to make these functions takes its time.
--
-- KEYS   as in lock.lua
-- Gives  arrival(time)  when a claim arrives that has no ticket
--        stand_in_line(ticket, inbox, ttl, says)
--        leave_queue(waiter)
--        hand_over(grant, caller, fits)
--        NEEDS      beside what a waiter says of itself: behind its token, the field that has the
--                   keys of the locks that it needs all at once, each on a line
-- Takes  elsewhere  a function that a script for several names sets (multi.lua); else nil
--        own_inbox  the inbox of the process that asks, if the answer names those of its waiters
--                   that were handed the lock
-- Gives  granted    the tokens of these waiters, each with its fencing token
-- Needs  index
-- luacheck: read globals now integer noted queue waiters token MINUTE MOST CLUSTER

-- A waiter to whom the lock was handed has so long to confirm it, in ms. One that was seen within that time
-- lives, most likely, and confirms nothing.
local CLAIM_WINDOW = 1000
-- A waiter is passed over when it was not seen for so long, in µs: its process is
-- stopped. It must be longer than the longest slice that waiting.py sleeps.
local SIGN_OF_LIFE = 5000000
-- The inbox of a waiter that nobody can wake; it asks again before the window is over.
local DEAF = '-'

-- So many more waiters does this script deal with.
local budget = MOST

-- Behind whoever waits, also when the clock was set back meanwhile.
local function arrival(time)
  local last, at = unpack(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES'))
  return last and last ~= token and math.max(time, at + 1) or time
end

-- Take a place in the queue; without an inbox, only a ticket for it. Returns the ticket.
local function stand_in_line(ticket, inbox, ttl, says)
  if ticket == '' then ticket = integer(arrival(now)) end
  if inbox ~= '' then
    -- The earlier one counts: a first send may come after a later one, or its answer be lost.
    if redis.call('ZADD', queue, 'LT', ticket, token) == 0 then
      ticket = integer(redis.call('ZSCORE', queue, token))
    end
    redis.call('HSET', waiters, token,
      table.concat({integer(now), ttl, inbox, says}, '|'))
    redis.call('PEXPIRE', queue, MINUTE)
    redis.call('PEXPIRE', waiters, MINUTE)
  end
  return ticket
end

local NEEDS = '+'

local function leave_queue(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('HDEL', waiters, waiter, waiter .. NEEDS)
end

-- Let a waiter that needs another name as well, which is held, wait for that name. Returns whether it
-- did so.
local elsewhere
local own_inbox
local granted = {}

-- An inbox is a channel for all locks, or the end of the name of the channel that a process has for each
-- lock that it waits for (sharded pub/sub). Returns the name of the latter, or nil.
local function channel_of(inbox)
  if not string.find(inbox, ':', 1, true) then return string.sub(queue, 1, -6) .. 'inbox:' .. inbox end
end

-- How many listen at an inbox: at that of a process that was killed, nobody does. If a waiter can't listen
-- (its connection is away), if another node of a cluster may know it, or if the Redis user may not ask
-- (which is an error), nil: its sign of life has to do. PUBLISH would count listeners, too, but also those
-- with a pattern.
local function listeners(inbox)
  local channel = inbox ~= DEAF and channel_of(inbox)
  if inbox == DEAF or CLUSTER and not channel then return nil end
  local answer = redis.pcall('PUBSUB', channel and 'SHARDNUMSUB' or 'NUMSUB', channel or inbox)
  return not answer.err and answer[2] or nil
end

local function tell(inbox, message)
  if inbox == DEAF then return end
  local channel = channel_of(inbox)
  if channel then
    redis.pcall('SPUBLISH', channel, message)
  else
    redis.pcall('PUBLISH', inbox, message)
  end
end

-- Whether there is room for a waiter; nil: it waits for a lock of another kind, which can't be held
-- together with this one. A mutex has no `fits`, and its waiters have nothing behind a tab.
local function has_room(says, fits)
  if fits then return fits(says) end
  if not string.find(says, '\t', 1, true) then return true end
end

-- Hand what is free to the first waiter that can be reached, and wake it: `grant` gives it the lock. Then
--   a waiter of the process that asks has its whole ttl, and the answer says so;
--   a waiter that listens, and was seen within the claim window, has it until it would be passed over if it
--     were not seen any more, and a message says so:
--     token|fencing token|time of acquiring, µs|for how long, ms;
--   any other waiter has it for the claim window, and has to confirm it.
-- With `fits`, hand it to all waiters at the head of the queue, as long as there is room for the next one;
-- nobody passes a waiter for whom there is no room.
--
-- Returns the token of the last waiter that it was handed to, or of the one for which there is no room;
-- or `caller` when everybody before it is served or gone; or nil when nobody waits any more. After MOST
-- waiters it returns nil and true: others wait, and what is free stays free until one of them asks.
-- Each of them does so by itself within seconds, a `caller` at once (queued.py).
--
-- A waiter for a lock of another kind (the key that it waited for is gone) gets nothing: it is woken,
-- asks again, and then the answer says why.
local function hand_over(grant, caller, fits)
  local unseen
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    -- A caller that waits, too, was seen just now, and goes on where this script stops.
    local last = not first
      or budget == 0 and not (caller and redis.call('ZSCORE', queue, caller))
    if last and unseen and (not fits or fits(unseen.says)) then
      -- Nobody was seen lately: it is less likely that all of them were stopped than that this
      -- server was, or that its clock was set. The first gets the lock; the others have been woken,
      -- and come back in order.
      grant(unseen.waiter, unseen.ttl, CLAIM_WINDOW, unseen.says, '?')
      return unseen.waiter
    end
    if not first or first == caller then return first end
    if budget == 0 then return nil, true end
    budget = budget - 1
    local entry = redis.call('HGET', waiters, first)
    local seen, ttl, inbox, says = string.match(entry or '', '^(%d+)|(%d+)|([^|]*)|(.*)$')
    if seen and #ttl > 14 then seen = nil end  -- as in value.lua
    local there = seen and listeners(inbox)
    local reached = seen and there ~= 0
    local lately = reached and now - seen < SIGN_OF_LIFE
    local room = seen and has_room(says, fits)
    if lately and room == false then return first end
    local moved = lately and elsewhere and elsewhere(first, entry)
    leave_queue(first)
    ttl = tonumber(ttl)
    if moved then
      unseen = nil
    elseif lately and room then
      unseen = nil
      -- A note is in no message, so whoever inherits one has to ask.
      local knows = fits or redis.call('EXISTS', noted) == 0
      if knows and inbox == own_inbox then
        table.insert(granted, first)
        table.insert(granted, grant(first, ttl, ttl, says, '+'))
      elseif knows and there and string.find(inbox, 'm%x+$')  -- those of earlier versions have no such letter
        and now >= tonumber(seen) and now - seen < 1000 * CLAIM_WINDOW then
        local lives = math.min(ttl, math.floor((seen + SIGN_OF_LIFE - now) / 1000))
        local fence = grant(first, ttl, lives, says, '+')
        tell(inbox, table.concat({first, fence, integer(now), lives}, '|'))
      else
        tell(inbox, first)
        grant(first, ttl, CLAIM_WINDOW, says, '?')
      end
      if not fits then return first end
    elseif seen then
      tell(inbox, first)
      if reached and room ~= nil then
        unseen = unseen or {waiter = first, ttl = ttl, says = says}
      end
    end
  end
end
