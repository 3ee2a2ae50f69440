-- Give back the lock, or the place in its queue, and hand the lock to the next waiter.
-- Repeated, it changes nothing: it does not find the lock its own.
--
-- KEYS     as in mutex_grant.lua
-- ARGV     1 as in lock.lua
--          2 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
--          3 own_inbox the inbox of this process, if the answer is to name its waiters; or ""
-- Returns  {1}                  released
--          {1, now µs, granted} and these tokens of this process have it now, each with its fencing
--                               token
--          {0, value, gone}     not held: who holds it now, what was written of our token
-- luacheck: read globals now integer give_back granted, globals own_inbox

own_inbox = ARGV[3] or ''
local answer = give_back(ARGV[2] == '1')
if granted[1] then return {1, integer(now), granted} end
return answer
