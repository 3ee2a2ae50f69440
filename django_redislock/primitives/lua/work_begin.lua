-- Begin a task that a worker was given, or park it. Idempotent: sent again with the same token, it finds
-- its run, and lets its lease live for another ttl.
--
-- KEYS     as in work.lua; then 17 withdrawn  string  of this id: the message was replaced
-- ARGV     1 as in lock.lua
--          2 ttl      ms
--          3 says     owner|label; the owner has no "|"
--          4 id       of the message
--          5 limit
--          6 weight
--          7 mark     as in work.lua
--          8 message  what is sent again; "" if it can't be parked
--          9 recover  1: the message is kept until the end of the run. Else 0.
--          10 name    for lists
-- Returns  each with promoted and healed at its end:
--          {1, acquired at µs, fencing token, message or false, note or false}  it runs; with the
--                        arguments of the last call, if there were several, and the note that it takes
--                        over, if one runs at a time
--          {2, 0}        it was parked; or it waits until it can be tried again
--          {3, 0}        another delivery of this message runs. This one is kept until that has ended, and
--                        is the next one if its process was killed
--          {4, 0}        it was replaced, and must not run
--          {5, wait ms}  it is not due yet
--          {-2, kind}    the name is held as another kind of lock
-- Needs  lock, work, permits_grant, note
-- luacheck: read globals now millis integer lock token holders expire ends_of grant claim parked sent
-- luacheck: read globals messages runs TICKET LASTS SENDING taken heal all_runs unnamed note answer
-- luacheck: read globals weight_of held_as differs since inherited parts_of

local ttl, says, id = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, weight, mark, message = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local begun, withdrawn = KEYS[14], KEYS[17]
local text = weight .. mark .. message
local function found() return limit == 1 and inherited() or false end
local function keep() redis.call('HSET', messages, id, text, since(id), integer(now)) end

expire()
if ends_of(token) then
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  redis.call('ZADD', lock, 'GT', integer(millis + ttl), token)
  local _, _, fence, acquired_at = parts_of(redis.call('HGET', holders, token) or '')
  if fence then
    return answer(limit, {1, acquired_at, fence, redis.call('HGET', messages, token), found()})
  end
end
local held = held_as()
if differs('task', held) then return {-2, held, {}, 0} end
heal()
if redis.call('DEL', withdrawn) == 1 then return answer(limit, {4, 0}) end
if select(3, all_runs())[id] then
  if message ~= '' then keep() end
  return answer(limit, {3, 0})
end
local waiting, due = unpack(redis.call('HMGET', claim, 'id', 'due'))
-- A retry may have an id of its own, that of its message with a colon and a number, and its claim that of an
-- attempt that could not begin.
local own_claim = waiting and string.match(waiting, '^[^:]*') == string.match(id, '^[^:]*')
if own_claim and due and tonumber(due) > now then
  return answer(limit, {5, math.ceil((due - now) / 1000)})
end

note(ARGV[10], LASTS)
local own = redis.call('ZREM', sent, id) == 1
local perhaps = not own and unnamed()
local others = taken() - (perhaps and weight_of(perhaps) or 0)
local first = own or perhaps or redis.call('LLEN', parked) == 0
if first and (others == 0 or others + weight <= limit) then
  if own then redis.call('HDEL', messages, id, since(id)) end
  if perhaps then
    redis.call('SADD', begun, id)
    redis.call('PEXPIRE', begun, 2 * SENDING / 1000)
  end
  if ARGV[9] == '1' and message ~= '' then keep() end
  local latest = false
  -- The claim may also be under an id that this message had before, or is going to have.
  if own_claim or waiting and (waiting == perhaps or string.sub(waiting, 1, 1) == TICKET) then
    latest = redis.call('HGET', claim, 'message')
    if latest then redis.call('HSET', messages, token, latest) end
    redis.call('DEL', claim)
  end
  redis.call('HSET', runs, token, weight .. '|' .. id)
  local fence = grant(token, ttl, ttl, says .. '\ttask|' .. ARGV[5], '|')
  return answer(limit, {1, integer(now), fence, latest, found()})
end

if own then
  -- The limit has changed, or another message has begun with its permit.
  redis.call('LPUSH', parked, id)
elseif message ~= '' and redis.call('HEXISTS', messages, id) == 0 then
  keep()
  redis.call('RPUSH', parked, id)
end
return answer(limit, {2, 0})
