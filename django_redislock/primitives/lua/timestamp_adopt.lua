-- Continue a lease in another process, under a new token: if two processes were given the old token,
-- only the first one gets the lease. Idempotent: sent again, it finds that the new token has the lock.
--
-- KEYS     as in timestamp_keys.lua
-- ARGV     1 as in timestamp_keys.lua: the old token
--          2 new_token
--          3 ttl    ms
--          4 says   owner|label; the owner has no "|"
-- Returns  {1, false, acquired at µs}  the new token holds it
--          {0, holder, gone}           not held: its holder, why the old token may not have it
-- Needs  timestamp_keys, timestamp
-- luacheck: read globals lock gone token parts_of value_of token_of look MINUTE holder_of
-- luacheck: read globals writes_fractions hold

local new_token, ttl, says = ARGV[2], ARGV[3], ARGV[4]

local value = look(lock)
local holder = holder_of(value)
if not holder or (token_of(holder) ~= token and token_of(holder) ~= new_token) then
  return {0, holder, redis.call('GET', gone)}
end
local _, _, _, acquired_at = parts_of(holder)
holder = value_of(new_token, '|', '0', acquired_at, ttl, says)
hold(holder, ttl, writes_fractions(), value)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
return {1, false, acquired_at}
