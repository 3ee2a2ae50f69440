-- Give back the lock, or the place in its queue, and hand the lock to the next waiter.
-- Idempotent: repeated, it finds itself in the tail.
--
-- KEYS     as in mutex.lua
-- ARGV     1, 2 as in mutex.lua
--          3 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
--          4 home      the inbox of this process, if its waiters are to be told by the answer
-- Returns  {1}                  released, now or before
--          {1, now µs, heirs}   and these tokens of this process have it now, each with its fencing
--                               token
--          {0, value, gone}     not held: who holds it now, what was written of our token

-- include lock.lua

-- Most locks are ours still, and nobody waits.
local value = ARGV[3] == '0' and redis.pcall('GET', lock)
if type(value) == 'string' and string.sub(value, 1, 32) == token
  and redis.call('EXISTS', queue) == 0 then
  -- include mutex_end.lua
  if not CLUSTER then redis.call('ZREM', index, name) end
  return {1}
end

-- include mutex.lua
-- include queue.lua
-- include mutex_giving.lua

home = ARGV[4]
local answer = give_back(ARGV[3] == '1')
if heirs[1] then return {1, integer(now), heirs} end
return answer
