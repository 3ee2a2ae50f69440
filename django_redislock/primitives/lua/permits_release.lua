-- Give back a permit, or the place in the queue, and hand the permit to the next waiters.
-- Repeated, it changes nothing: it does not find the permit its own.
--
-- KEYS     as in permits.lua
-- ARGV     1 as in lock.lua
--          2 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
--          3 own_inbox as in mutex_release.lua
-- Returns  {1, now µs, granted} released; as in mutex_release.lua
--          {0, value, gone}     not held: what is at the key if that is not ours, what was written
--                               of our token
-- Needs  lock, queue, permits_grant
-- luacheck: globals own_inbox
-- luacheck: read globals now integer gone token MINUTE granted leave_queue hand_over
-- luacheck: read globals foreign NO_ZSET ends_of fits drop expire settle grant

local withdraw = ARGV[2] == '1'
own_inbox = ARGV[3] or ''

if not foreign then expire() end
local held = not foreign and ends_of(token)
local why = (withdraw or not held) and redis.call('GET', gone)
local _, listed

if held then
  _, listed = drop(token, 'released')
else
  leave_queue(token)
end
if not foreign then
  -- Even if we only stood in the queue: others may wait behind us.
  local handed = hand_over(grant, nil, fits)
  settle(listed or handed)
end

if withdraw and not why then
  redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
end

if held then
  return {1, integer(now), granted}
end
return {0, foreign and NO_ZSET, why}
