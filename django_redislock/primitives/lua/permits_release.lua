-- Give back a permit, or the place in the queue, and hand the permit to the next waiters.
-- Repeated, it changes nothing: it does not find the permit its own.
--
-- KEYS     as in permits.lua
-- ARGV     1 as in lock.lua
--          2 late      1 when an acquire of this token may still be on its way, as in withdraw.lua. Else 0.
--          3 own_inbox as in mutex_release.lua
-- Returns  {1, now µs, granted} released; as in mutex_release.lua
--          {0, value, gone}     not held: what is at the key if that is not ours, what was written
--                               of our token
-- Needs  lock, queue, permits_grant, withdraw
-- luacheck: globals own_inbox
-- luacheck: read globals now integer token granted leave_queue hand_over withdraw
-- luacheck: read globals foreign NO_ZSET ends_of fits drop expire settle grant

own_inbox = ARGV[3] or ''

if not foreign then expire() end
local held = not foreign and ends_of(token)
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

local why = withdraw(ARGV[2] == '1', held)
if held then
  return {1, integer(now), granted}
end
return {0, foreign and NO_ZSET, why}
