-- Take all locks; or none of them, and a place in the queue of one that is held. Idempotent:
-- a lock that our token holds already, from an earlier send or because it was handed to us, is kept
-- when we get the others too, and else passed on.
--
-- KEYS     as in multi.lua
-- ARGV     1 as in lock.lua
--          2 ttl     ms
--          3 says    owner|label; the owner has no "|"
--          4 inbox   channel on which this process listens; "": this is the only try, or the last
--          5 ticket  time of arrival from an earlier reply, or ""; it is good for every lock
-- Returns  {1, acquired at µs, fencing token of each lock}         we hold them all
--          {0, value, pttl ms, now µs, position, ticket, lasted, number}  somebody else holds the
--                                                                    lock of this number
--          {-1, why, number}                                         this token is gone for good
--          {2, ticket}                                               ask again, at once, as in
--                                                                    mutex_acquire.lua
-- luacheck: read globals now integer lock queue waiters gone token token_of confirm grant
-- luacheck: read globals stand_in_line leave_queue hand_over lasted NEEDS LOCKS turn_to list unlist
-- luacheck: globals busy

local ttl, says, inbox, ticket = tonumber(ARGV[2]), ARGV[3], ARGV[4] or '', ARGV[5] or ''

-- What is at each lock, and for which locks somebody waits.
local values, waited, anybody = {}, {}, false
for i = 1, LOCKS do
  turn_to(i)
  values[i] = redis.call('GET', lock)
  if token_of(values[i]) ~= token and redis.call('EXISTS', queue, gone) > 0 then
    local why = redis.call('GET', gone)
    if why then return {-1, why, i} end
    waited[i], anybody = true, true
  end
end

if anybody and ticket == '' then
  -- Behind whoever waits for one of them, also when the clock was set back meanwhile.
  local arrival = now
  for i in pairs(waited) do
    turn_to(i)
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    if last[1] ~= token then arrival = math.max(arrival, (last[2] or 0) + 1) end
  end
  ticket = integer(arrival)
elseif ticket == '' then
  ticket = integer(now)
end

-- A free lock for which somebody waits belongs to the first waiter, which may be ourselves.
local blocked
for i = 1, LOCKS do
  turn_to(i)
  if not values[i] and waited[i] then
    stand_in_line(ticket, inbox, ttl, says)
    local first, more = hand_over(grant, token)
    if more then return {2, ticket} end
    if first and first ~= token then values[i] = redis.call('GET', lock) end
  end
  if values[i] and token_of(values[i]) ~= token then
    blocked, busy[lock] = blocked or i, i
  end
end

if not blocked then
  local answer = {1, integer(now)}
  for i = 1, LOCKS do
    turn_to(i)
    if values[i] then
      answer[i + 2] = confirm(values[i], ttl)
    else
      if waited[i] then leave_queue(token) end
      answer[i + 2] = grant(token, ttl, ttl, says, waited[i] and '+' or '|')
    end
  end
  return answer
end

-- We get none of them, then: what was handed to us goes to the next waiter, and we wait for one lock.
for i = 1, LOCKS do
  turn_to(i)
  if token_of(values[i]) == token then
    redis.call('DEL', lock)
    if hand_over(grant) then busy[lock] = i else unlist() end
  elseif waited[i] then
    if i ~= blocked or inbox == '' then leave_queue(token) end
    if not values[i] and hand_over(grant) then busy[lock] = i end
  end
end

turn_to(blocked)
ticket = stand_in_line(ticket, inbox, ttl, says)
local value, pttl = values[blocked], redis.call('PTTL', lock)
if inbox ~= '' then
  local needs = {}
  for i = 1, LOCKS do needs[i] = KEYS[5 * i - 4] end
  redis.call('HSET', waiters, token .. NEEDS, table.concat(needs, '\n'))
  list(value, pttl)
end
return {0, value, pttl, integer(now), redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue),
  ticket, inbox == '' and lasted(), blocked}
