-- Continue a lease in another process, under a new token: if two processes were given the old token,
-- only the first one gets the lease. Idempotent: sent again, it finds the lock its own.
--
-- KEYS     as in locks.lua; 5 is for the old token
-- ARGV     1 as in lock.lua: the old token
--          2 new_token
--          3 ttl       ms
--          4 says      owner|label; the owner has no "|"
-- Returns  {1, fencing token, acquired at µs}  the new token holds it
--          {0, value, gone}                    not held: who holds it, what was written of the
--                                              old token
-- Needs  locks, history, index
-- luacheck: read globals now lock history gone token newest token_of look parts_of value_of
-- luacheck: read globals enlist MINUTE write_down

local new_token, ttl, says = ARGV[2], tonumber(ARGV[3]), ARGV[4]

local value = look(lock)
local held = token_of(value)
if held ~= token and held ~= new_token then
  return {0, value, redis.call('GET', gone)}
end

local _, _, fence, acquired_at = parts_of(value)
local lives = math.max(redis.call('PTTL', lock), ttl)
value = value_of(new_token, '+', fence, acquired_at, ttl, says)
redis.call('SET', lock, value, 'PX', lives)
enlist(now / 1000 + lives)
-- The history has one entry for the whole hold.
if newest() == token then redis.call('LPOP', history) end
write_down(value)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
return {1, fence, acquired_at}
