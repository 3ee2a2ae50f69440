-- Continue a lease in another process, under a token of its own: so of two processes that were
-- given the old one, only the first gets it. Idempotent: sent again, it finds the lock its own.
--
-- KEYS     1 lock  2 tail  3 index  4 gone, of the old token  (as in timestamp.lua)
-- ARGV     1 token  the old one
--          2 name
--          3 heir   the new token
--          4 ttl    ms
--          5 owner  without "|"
--          6 label
-- Returns  {1, false, acquired at µs}  the heir holds it
--          {0, holder, gone}           not held: who holds it, what was written of the old token

-- include timestamp.lua

local lock, tail, index, gone = unpack(KEYS)
index = index ~= lock and index
local token, name, heir, ttl, owner, label = unpack(ARGV)

local value = look(lock)
local holder = holder_of(tail, value)
if not holder or (token_of(holder) ~= token and token_of(holder) ~= heir) then
  return {0, holder, redis.call('GET', gone)}
end
local acquired_at = string.match(holder, '^[^|]*|0|(%d+)')
local fractions = string.find(redis.call('HGET', tail, 'until'), '.', 1, true)
hold(lock, tail, index, name,
  table.concat({heir, 0, acquired_at, ttl, owner, label}, '|'), ttl, fractions, value)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
return {1, false, acquired_at}
