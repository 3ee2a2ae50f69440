-- Give back the lock, or the place in its queue, and hand the lock to the next waiter.
-- Idempotent: repeated, it finds itself in the tail.
--
-- KEYS     as in mutex.lua
-- ARGV     1, 2 as in mutex.lua
--          3 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
-- Returns  {1}                  released, now or before
--          {0, value, gone}     not held: who holds it now, what was written of our token

-- include mutex.lua
-- include mutex_giving.lua

return give_back(ARGV[3] == '1')
