-- Take a permit, or a place in the queue. Idempotent: sent again with the same token, it finds that
-- the token has a permit, and lets the lease live for another ttl.
--
-- KEYS     as in permits.lua
-- ARGV     1 as in lock.lua
--          2 ttl     ms
--          3 says    owner|label; the owner has no "|"
--          4 inbox   channel on which this process listens; "" gives up the place in the
--                    queue: this is the only try, or the last one
--          5 ticket  time of arrival from an earlier reply, or ""; it keeps our place when
--                    the queue was lost or we were passed over
--          6 kind
--          7 limit
-- Returns  {1, acquired at µs, fencing token}                                we hold a permit, as in
--                                                                            mutex_acquire.lua
--          {0, value, pttl ms, now µs, position, ticket, lasted, how many}   others hold them all:
--                                     the one whose lease ends first, and how many they are
--          {-1, why}                                                this token may never have one
--          {-2, kind}                               the holders have another kind of lock
--          {2, ticket}                              ask again, at once, as in mutex_acquire.lua
-- Needs  lock, queue, permits_grant
-- luacheck: read globals integer lock queue gone token parts_of stand_in_line leave_queue hand_over
-- luacheck: read globals now holders millis ends_first number ends_of held_as differs fits mark_of marked
-- luacheck: read globals expire settle grant lasted

local ttl, says, inbox, ticket = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local kind, limit = ARGV[6], ARGV[7]
says = says .. '\t' .. kind .. '|' .. limit

expire()
local ends = ends_of(token)
local record = ends and redis.call('HGET', holders, token)

if record then
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  if mark_of(record) == '?' then
    record = marked(record, '+')
    redis.call('HSET', holders, token, record)
    ends = 0
  end
  -- Unless it was just handed to us, it never gets less than it has: an early send may arrive late,
  -- after an extension.
  redis.call('ZADD', lock, integer(math.max(ends, millis + ttl)), token)
  settle(mark_of(record) == '+')
  local _, _, fence, acquired_at = parts_of(record)
  return {1, acquired_at, fence}
end

if redis.call('EXISTS', queue, gone) == 0 and fits(says) then
  return {1, integer(now), grant(token, ttl, ttl, says, '|')}
end

local why = redis.call('GET', gone)
if why then
  return {-1, why}
end
local held = held_as()
if differs(kind, held) then
  leave_queue(token)
  return {-2, held}
end

ticket = stand_in_line(ticket, inbox, ttl, says)
local first, more = hand_over(grant, token, fits)
if more then
  settle(true)
  return {2, ticket}
end
local fence
if (not first or first == token) and fits(says) then
  fence = grant(token, ttl, ttl, says, '+')
end
local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
if fence or inbox == '' then
  leave_queue(token)
  hand_over(grant, nil, fits)  -- there may be room for the waiters behind us
end
if fence then
  settle(true)
  return {1, integer(now), fence}
end
local its, ends_at = ends_first()
local value = redis.call('HGET', holders, its)
if inbox ~= '' then
  -- Whoever is waited for is listed, and its release removes it from the list.
  if value and mark_of(value) == '|' then redis.call('HSET', holders, its, marked(value, '+')) end
  settle(true)
end
return {0, value, ends_at - millis, integer(now), position, ticket, inbox == '' and lasted(), number()}
