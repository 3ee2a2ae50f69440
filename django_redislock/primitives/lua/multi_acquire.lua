-- Take the locks of all names; or none of them, and a place in the queue of one that is held. Idempotent:
-- a name that our token holds already, from an earlier send or because it was handed to us, is kept
-- when we get the others too, and otherwise passed on.
--
-- KEYS     as in multi.lua
-- ARGV     1, 2 as in multi.lua
--          3 ttl     ms
--          4 owner   without "|"
--          5 label
--          6 inbox   channel on which this process listens; "": this is the only try, or the last
--          7 ticket  time of arrival from an earlier reply, or ""; it is good for every name
--          8 on      the other names
-- Returns  {1, acquired at µs, fencing token of each name}         we hold them all
--          {0, value, pttl ms, now µs, position, ticket, lasted, number}  somebody else holds the
--                                                                    name of this number
--          {-1, why, number}                                         this token may never have it
--          {2, ticket}                                               ask again, at once, as in
--                                                                    mutex_acquire.lua
-- luacheck: read globals now integer lock queue waiters tail gone name token token_of confirm grant
-- luacheck: read globals stand_in_line leave_queue hand_over NEEDS NAMES turn_to unlist, globals busy

local ttl, owner, label, inbox, ticket =
  tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local OTHERS = 8

-- The value at each lock, and the names for which somebody waits.
local values, waited, anybody = {}, {}, false
for i = 1, NAMES do
  turn_to(i, OTHERS)
  values[i] = redis.call('GET', lock)
  if token_of(values[i]) ~= token and redis.call('EXISTS', queue, gone) > 0 then
    local why = redis.call('GET', gone)
    if why then return {-1, why, i} end
    waited[i], anybody = true, true
  end
end

if anybody and ticket == '' then
  -- Behind everybody who waits for one of them, even if the clock was set back meanwhile.
  local arrival = now
  for i in pairs(waited) do
    turn_to(i, OTHERS)
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    if last[1] ~= token then arrival = math.max(arrival, (last[2] or 0) + 1) end
  end
  ticket = integer(arrival)
elseif ticket == '' then
  ticket = integer(now)
end

-- A free lock for which somebody waits belongs to the first waiter, which may be ourselves.
local blocked
for i = 1, NAMES do
  turn_to(i, OTHERS)
  if not values[i] and waited[i] then
    stand_in_line(ticket, inbox, ttl, owner, label)
    local first, more = hand_over(grant, token)
    if more then return {2, ticket} end
    if first and first ~= token then values[i] = redis.call('GET', lock) end
  end
  if values[i] and token_of(values[i]) ~= token then
    blocked, busy[name] = blocked or i, i
  end
end

if not blocked then
  local answer = {1, integer(now)}
  for i = 1, NAMES do
    turn_to(i, OTHERS)
    if values[i] then
      answer[i + 2] = confirm(values[i], ttl)
    else
      if waited[i] then leave_queue(token) end
      answer[i + 2] = grant(token, ttl, ttl, owner, label)
    end
  end
  return answer
end

-- We get none of them, then: what was handed to us goes to the next waiter, and we wait for one name.
for i = 1, NAMES do
  turn_to(i, OTHERS)
  if token_of(values[i]) == token then
    redis.call('DEL', lock)
    if hand_over(grant) then busy[name] = i else unlist() end
  elseif waited[i] then
    if i ~= blocked or inbox == '' then leave_queue(token) end
    if not values[i] and hand_over(grant) then busy[name] = i end
  end
end

turn_to(blocked, OTHERS)
ticket = stand_in_line(ticket, inbox, ttl, owner, label)
if inbox ~= '' then
  redis.call('HSET', waiters, token .. NEEDS, table.concat({ARGV[2], unpack(ARGV, OTHERS)}, '\n'))
end
return {0, values[blocked], redis.call('PTTL', lock), integer(now),
  redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue), ticket,
  redis.call('HGET', tail, 'lasted'), blocked}
