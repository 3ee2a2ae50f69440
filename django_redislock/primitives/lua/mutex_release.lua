-- Release the lock, or the place in its queue, and hand the lock to the next waiter.
-- Idempotent: sent again, it finds its token in the tail.
--
-- KEYS     as in mutex_grant.lua
-- ARGV     1, 2 as in lock.lua
--          3 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that a late acquire is refused. Else 0.
--          4 own_inbox the inbox of this process, if the answer is to name its waiters; or ""
-- Returns  {1}                  released, now or before
--          {1, now µs, granted} and these tokens of this process have it now, each with its fencing
--                               token
--          {0, value, gone}     not held: the value at the lock, why our token may not have it
-- luacheck: read globals now integer give_back granted withdraw, globals own_inbox

own_inbox = ARGV[4]
local answer = give_back(withdraw)
if granted[1] then return {1, integer(now), granted} end
return answer
