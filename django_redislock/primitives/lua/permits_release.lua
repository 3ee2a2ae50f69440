-- Release a permit, or the place in the queue, and hand the permit to the next waiters. Idempotent:
-- sent again, it finds its token in the tail.
--
-- KEYS     as in permits.lua
-- ARGV     1, 2 as in lock.lua
--          3 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that a late acquire is refused. Else 0.
--          4 own_inbox as in mutex_release.lua
-- Returns  {1, now µs, granted} released, now or before; as in mutex_release.lua
--          {0, value, gone}     not held: NO_ZSET if the key has another type, why our token may
--                               not have it
-- luacheck: globals own_inbox
-- luacheck: read globals now integer tail gone token MINUTE PAST_HOLDERS granted leave_queue hand_over
-- luacheck: read globals foreign NO_ZSET ends_of fits enter drop expire settle grant

local withdraw = ARGV[3] == '1'
own_inbox = ARGV[4]

if not foreign then expire() end
local held = not foreign and ends_of(token)
local why = (withdraw or not held) and redis.call('GET', gone)
local before = false

if held then
  local record = drop(token)
  if record then enter(record, 'released') end
else
  leave_queue(token)
  for slot = 0, PAST_HOLDERS - 1 do
    local past = redis.call('HGET', tail, slot)
    before = before or past and string.sub(past, 1, 32) == token
      and string.find(past, '\treleased|', 1, true)
  end
end
if not foreign then
  hand_over(grant, nil, fits)  -- even if we only stood in the queue: others may wait behind us
  settle()
end

if withdraw and not why then
  redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
end

if held or before then
  return {1, integer(now), granted}
end
return {0, foreign and NO_ZSET, why}
