-- Take a permit, or a place in the queue. Idempotent: sent again with the same token, it finds that
-- the token has a permit, and lets the lease live for another ttl.
--
-- KEYS     as in permits.lua
-- ARGV     1, 2 as in lock.lua
--          3 ttl     ms
--          4 owner   without "|"
--          5 label
--          6 inbox   channel on which this process listens; "" gives up the place in the
--                    queue: this is the only try, or the last one
--          7 ticket  time of arrival from an earlier reply, or ""; it keeps our place when
--                    the queue was lost or we were passed over
--          8 kind
--          9 limit
-- Returns  {1, fencing token, acquired at µs}                                we hold a permit
--          {0, value, pttl ms, now µs, position, ticket, lasted, how many}   others hold them all:
--                                     the one whose lease ends first, and how many they are
--          {-1, why}                                                this token may never have one
--          {-2, kind}                               the holders have another kind of lock
--          {2, ticket}                              ask again, at once, as in mutex_acquire.lua
-- luacheck: read globals integer lock queue tail gone token VALUE stand_in_line leave_queue hand_over
-- luacheck: read globals now holders millis ends_first number ends_of held_as differs fits is_handed
-- luacheck: read globals expire settle grant

local ttl, owner, label, inbox, ticket =
  tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local kind, limit = ARGV[8], ARGV[9]
label = label .. '\t' .. kind .. '|' .. limit

expire()
local ends = ends_of(token)
local record = ends and redis.call('HGET', holders, token)

if record then
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  if is_handed(record) then
    redis.call('HSET', holders, token, string.sub(record, 1, -8))
    ends = 0
  end
  -- Unless it was just handed to us, it never gets less than it has: an early send may arrive late,
  -- after an extension.
  redis.call('ZADD', lock, integer(math.max(ends, millis + ttl)), token)
  settle()
  local _, fencing_token, acquired_at = string.match(record, VALUE)
  return {1, fencing_token, acquired_at}
end

if redis.call('EXISTS', queue, gone) == 0 and fits(label) then
  local fencing_token = grant(token, ttl, ttl, owner, label)
  return {1, fencing_token, integer(now)}
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

ticket = stand_in_line(ticket, inbox, ttl, owner, label)
local first, more = hand_over(grant, token, fits)
if more then
  settle()
  return {2, ticket}
end
local fencing_token
if (not first or first == token) and fits(label) then
  fencing_token = grant(token, ttl, ttl, owner, label)
end
local position = redis.call('ZRANK', queue, token) or redis.call('ZCARD', queue)
if fencing_token or inbox == '' then
  leave_queue(token)
  hand_over(grant, nil, fits)  -- there may be room for the waiters behind us
end
settle()
if fencing_token then
  return {1, fencing_token, integer(now)}
end
local its, ends_at = ends_first()
return {0, redis.call('HGET', holders, its), ends_at - millis, integer(now), position,
  ticket, redis.call('HGET', tail, 'lasted'), number()}
