-- Claim the name for a task that is to wait in the queue. Idempotent: sent again with the same id, it
-- finds its claim.
--
-- KEYS     as in work.lua; then 17 withdrawn  string  of the id in ARGV 8
-- ARGV     1 the word that the answer begins with
--          2 id       of the message, or a ticket until the queue has given one
--          3 says     owner|label
--          4 lives    ms; 0: only look
--          5 alone    1: a running task is a conflict, too. Else 0.
--          6 message  the arguments of this call, if the last call counts. Else "".
--          7 settle|at_most  ms; "": it may begin at once. at_most: 0 without a limit
--          8 over     the id of the waiting message that is to be replaced; "": none
--          9 name     for lists
--          10 limit
--          11 sent    1: the message is in the queue already. Else 0.
--          12 within  ms: a claim that is older, and whose message is not known to be there, is over
-- Returns  {1, promoted, healed}                     claimed, or free
--          {0, id, says, at µs, sent, promoted, healed}  that message waits in the queue, or is parked; sent
--                                                    is 0 if it is not known to be there yet
--          {2, id, record, at µs, promoted, healed}  that message runs, by this holder, as in permits.lua
-- Needs  lock, work
-- luacheck: read globals now integer holders claim parked sent messages LASTS expire heal note
-- luacheck: read globals all_runs since answer

local id, says, lives, message, over = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6], ARGV[8]
local settle_ms, at_most = string.match(ARGV[7], '^(%d+)|(%d+)$')
local limit, withdrawn = tonumber(ARGV[10]), KEYS[17]

local function due(first)
  local time = now + settle_ms * 1000
  if at_most ~= '0' then time = math.min(time, first + at_most * 1000) end
  return integer(time)
end

expire()
-- A call heals, too: the killed task of a name may be the only one, so that no other begins or ends.
heal()
if ARGV[5] == '1' then
  local run = (all_runs())[1]
  if run then
    return answer(limit, {2, run[2], redis.call('HGET', holders, run[1]), integer(now)})
  end
end
local waiting, its_says, at, first, is_sent = unpack(
  redis.call('HMGET', claim, 'id', 'says', 'at', 'first', 'sent')
)
if waiting == id then return answer(limit, {1}) end
-- Also one of the future: the clock was set back.
if waiting and not is_sent and math.abs(now - at) >= ARGV[12] * 1000 then waiting = nil end
if waiting and waiting == over then
  -- One of which it was not known may have been sent after all, and its caller has its handle: it runs.
  if is_sent then
    redis.call('SET', withdrawn, '', 'PX', LASTS)
    redis.call('LREM', parked, 0, waiting)
    redis.call('ZREM', sent, waiting)
    redis.call('HDEL', messages, waiting, since(waiting))
  end
elseif waiting then
  if message ~= '' and first then
    redis.call('HSET', claim, 'message', message, 'due', due(first))
  end
  return answer(limit, {0, waiting, its_says, at, is_sent and 1 or 0})
end
if lives == 0 then return answer(limit, {1}) end
redis.call('DEL', claim)
redis.call('HSET', claim, 'id', id, 'says', says, 'at', integer(now))
if settle_ms then
  redis.call('HSET', claim, 'first', integer(now), 'due', due(now), 'message', message)
end
if ARGV[11] == '1' then redis.call('HSET', claim, 'sent', 1) end
redis.call('PEXPIRE', claim, lives)
note(ARGV[9], lives)
return answer(limit, {1})
