-- Continue a lease in another process, under a token of its own: so of two processes that were
-- given the old one, only the first gets it. Idempotent: sent again, it finds the lock its own.
--
-- KEYS     as in timestamp.lua
-- ARGV     1, 2 as in timestamp.lua: the old token
--          3 heir   the new token
--          4 ttl    ms
--          5 owner  without "|"
--          6 label
-- Returns  {1, false, acquired at µs}  the heir holds it
--          {0, holder, gone}           not held: who holds it, what was written of the old token

-- include timestamp.lua

local heir, ttl, owner, label = ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local value = look()
local holder = holder_of(value)
if not holder or (token_of(holder) ~= token and token_of(holder) ~= heir) then
  return {0, holder, redis.call('GET', gone)}
end
local acquired_at = string.match(holder, '^[^|]*|0|(%d+)')
hold(table.concat({heir, 0, acquired_at, ttl, owner, label}, '|'), ttl, writes_fractions(), value)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
return {1, false, acquired_at}
