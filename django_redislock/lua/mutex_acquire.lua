-- Take the lock, or a place in its queue. Idempotent: sent again with the same token, it
-- finds the lock its own and only sets the TTL; so a command that was sent twice, and a
-- waiter that confirms what was handed to it, are the same case.
--
-- KEYS     as in mutex.lua
-- ARGV     1, 2 as in mutex.lua
--          3 ttl     ms
--          4 owner   without "|"
--          5 label
--          6 inbox   channel on which this process listens; "" gives up the place in the
--                    queue: this is the only try, or the last one
--          7 ticket  time of arrival from an earlier reply, or ""; it keeps our place when
--                    the queue was lost or we were passed over
-- Returns  {1, fencing token, acquired at µs}               we hold it
--          {0, value, pttl ms, now µs, position, ticket}    somebody else does
--          {-1, why}                                        this token is gone for ever

-- include mutex.lua

local ttl, owner, label, inbox, ticket =
  tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local value = redis.call('GET', lock)

if holder(value) == token then
  redis.call('PEXPIRE', lock, ttl)
  redis.call('ZADD', index, integer(now / 1000 + ttl), name)
  local fencing_token, acquired_at = string.match(value, '^[^|]*|(%d+)|(%d+)')
  return {1, fencing_token, acquired_at}
end

if not value and redis.call('EXISTS', queue, gone) == 0 then
  return {1, grant(token, ttl, ttl, owner, label), integer(now)}
end

local why = redis.call('GET', gone)
if why then
  return {-1, why}
end

if inbox ~= '' then
  if ticket == '' then ticket = integer(now) end
  redis.call('ZADD', queue, 'NX', ticket, token)
  redis.call('HSET', waiters, token,
    table.concat({integer(now), ttl, inbox, owner, label}, '|'))
  redis.call('PEXPIRE', queue, MINUTE)
  redis.call('PEXPIRE', waiters, MINUTE)
end

if not value then
  local first = hand_over(token)
  if not first or first == token then
    leave_queue(token)
    return {1, grant(token, ttl, ttl, owner, label), integer(now)}
  end
  value = redis.call('GET', lock)
end

local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
if inbox == '' then
  leave_queue(token)
end
return {0, value, redis.call('PTTL', lock), integer(now), position, ticket}
