-- Part: how a mutex is acquired, or waited for.
--
-- KEYS   as in mutex_grant.lua
-- Gives  acquire(ttl, says, inbox, ticket)  do and return what mutex_acquire.lua says
-- luacheck: read globals now integer lock queue gone token token_of confirm grant list
-- luacheck: read globals stand_in_line leave_queue hand_over lasted

local function acquire(ttl, says, inbox, ticket)
  local value = redis.call('GET', lock)

  if token_of(value) == token then
    return {1, confirm(value, ttl)}
  end

  local why = redis.call('GET', gone)
  if why then
    return {-1, why}
  end

  if not value and redis.call('EXISTS', queue) == 0 then
    return {1, grant(token, ttl, ttl, says, '|'), integer(now)}
  end

  ticket = stand_in_line(ticket, inbox, ttl, says)

  if not value then
    local first, more = hand_over(grant, token)
    if more then
      return {2, ticket}
    end
    if not first or first == token then
      leave_queue(token)
      return {1, grant(token, ttl, ttl, says, '+'), integer(now)}
    end
    value = redis.call('GET', lock)
  end

  local pttl = redis.call('PTTL', lock)
  if inbox ~= '' then list(value, pttl) end

  local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
  if inbox == '' then
    leave_queue(token)
  end
  return {0, value, pttl, integer(now), position, ticket, inbox == '' and lasted()}
end
