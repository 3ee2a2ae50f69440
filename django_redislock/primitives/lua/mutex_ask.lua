-- Part: how a mutex is acquired, or waited for.
--
-- KEYS   as in locks.lua
-- Gives  acquire(ttl, says, inbox, ticket)  do and return what mutex_acquire.lua says
-- Needs  mutex_grant, mutex_confirm, needs
-- luacheck: read globals now integer lock queue waiters gone token token_of confirm grant list unlist
-- luacheck: read globals arrival stand_in_line leave_queue hand_over lasted NEEDS LOCKS turn_to
-- luacheck: globals busy

local function granted_all(values, waited, ttl, says)
  local answer = {1, integer(now)}
  for i = 1, LOCKS do
    turn_to(i)
    if values[i] then
      local fence, acquired_at = confirm(values[i], ttl)
      answer[i + 2] = fence
      if i == 1 then answer[2] = acquired_at end
    else
      if waited[i] then leave_queue(token) end
      answer[i + 2] = grant(token, ttl, ttl, says, waited[i] and '+' or '|')
    end
  end
  return answer
end

local function acquire(ttl, says, inbox, ticket)
  -- What is at each lock, and for which locks somebody waits.
  local values, waited = {}, {}
  for i = 1, LOCKS do
    turn_to(i)
    values[i] = redis.call('GET', lock)
    if token_of(values[i]) ~= token and redis.call('EXISTS', queue, gone) > 0 then
      local why = redis.call('GET', gone)
      if why then return {-1, why, i} end
      waited[i] = true
    end
  end
  if ticket == '' then
    local time = now
    for i in pairs(waited) do
      turn_to(i)
      time = arrival(time)
    end
    ticket = integer(time)
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
  if not blocked then return granted_all(values, waited, ttl, says) end

  -- We get none of them, then: what was handed to us goes to the next waiter, and we wait for one lock.
  for i = 1, LOCKS do
    turn_to(i)
    if token_of(values[i]) == token then
      redis.call('DEL', lock)
      if hand_over(grant) then busy[lock] = i else unlist() end
    elseif waited[i] and i ~= blocked then
      leave_queue(token)
      if not values[i] and hand_over(grant) then busy[lock] = i end
    end
  end

  turn_to(blocked)
  ticket = stand_in_line(ticket, inbox, ttl, says)
  local value, pttl = values[blocked], redis.call('PTTL', lock)
  local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
  if inbox == '' then
    leave_queue(token)
    return {0, value, pttl, integer(now), position, ticket, lasted(), blocked}
  end
  list(value, pttl)
  if LOCKS > 1 then
    local needs = {}
    for i = 1, LOCKS do needs[i] = KEYS[6 * i - 5] end
    redis.call('HSET', waiters, token .. NEEDS, table.concat(needs, '\n'))
  end
  return {0, value, pttl, integer(now), position, ticket, false, blocked}
end
