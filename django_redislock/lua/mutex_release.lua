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

local withdraw = ARGV[3] == '1'

local value = redis.pcall('GET', lock)
if type(value) == 'table' then value = NO_STRING end
local why = redis.call('GET', gone)
local held = holder(value) == token

if held then
  local fencing_token, ttl = string.match(value, '^[^|]*|(%d+)|%d+|(%d+)')
  redis.call('DEL', lock)
  redis.call('HSET', tail, 'released', token, 'fence', fencing_token)
  redis.call('PEXPIRE', tail, outlives(ttl))
  if not hand_over() then
    redis.call('ZREM', index, name)
  end
else
  leave_queue(token)
end

if withdraw and not why then
  redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
end

if held or redis.call('HGET', tail, 'released') == token then
  return {1}
end
return {0, value, why}
