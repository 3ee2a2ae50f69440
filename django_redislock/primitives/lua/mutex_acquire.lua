-- Take the lock, or a place in its queue. Idempotent: sent again with the same token, it finds that
-- the token has the lock, and lets it live for another ttl. A command that was sent twice, and a
-- waiter that confirms a lock that was handed to it, are the same case.
--
-- KEYS     as in mutex_grant.lua
-- ARGV     1, 2 as in lock.lua
--          3 ttl     ms
--          4 owner   without "|"
--          5 label
--          6 inbox   channel on which this process listens; "" gives up the place in the
--                    queue: this is the only try, or the last one
--          7 ticket  time of arrival from an earlier reply, or ""; it keeps our place when
--                    the queue was lost or we were passed over
-- Returns  {1, fencing token, acquired at µs}                       we hold it; all numbers, which
--                                                                   wire.py reads fastest
--          {0, value, pttl ms, now µs, position, ticket, lasted}    somebody else does
--          {-1, why}                                                this token may never have the lock
--          {2, ticket}                                              ask again, at once: nobody holds
--                                                                   it, and others are still
--                                                                   before us in the queue
-- luacheck: read globals now integer lock queue tail gone token token_of confirm grant
-- luacheck: read globals stand_in_line leave_queue hand_over owner label inbox ttl, globals ticket

local value = redis.call('GET', lock)

if token_of(value) == token then
  local fencing_token, acquired_at = confirm(value, ttl)
  return {1, tonumber(fencing_token), tonumber(acquired_at)}
end

local why = redis.call('GET', gone)
if why then
  return {-1, why}
end

ticket = stand_in_line(ticket, inbox, ttl, owner, label)

if not value then
  local first, more = hand_over(grant, token)
  if more then
    return {2, ticket}
  end
  if not first or first == token then
    leave_queue(token)
    return {1, tonumber(grant(token, ttl, ttl, owner, label)), now}
  end
  value = redis.call('GET', lock)
end

local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
if inbox == '' then
  leave_queue(token)
end
return {0, value, redis.call('PTTL', lock), integer(now), position, ticket,
  redis.call('HGET', tail, 'lasted')}
