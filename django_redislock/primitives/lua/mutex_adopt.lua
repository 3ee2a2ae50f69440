-- Continue a lease in another process, under a new token: if two processes were given the old token,
-- only the first one gets the lease. Idempotent: sent again, it finds that the new token has the lock.
--
-- KEYS     as in mutex_grant.lua; 6 is for the old token
-- ARGV     1, 2 as in lock.lua: the old token
--          3 new_token
--          4 ttl       ms
--          5 owner     without "|"
--          6 label
-- Returns  {1, fencing token, acquired at µs}  the new token holds it
--          {0, value, gone}                    not held: the value at the lock, why the old
--                                              token may not have it
-- luacheck: read globals now lock tail gone token token_of look VALUE enlist MINUTE PAST_HOLDERS
-- luacheck: read globals remembers

local new_token, ttl, owner, label = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local value = look(lock)
local held = token_of(value)
if held ~= token and held ~= new_token then
  return {0, value, redis.call('GET', gone)}
end

local _, fencing_token, acquired_at = string.match(value, VALUE)
local lives = math.max(redis.call('PTTL', lock), ttl)
value = table.concat({new_token, fencing_token, acquired_at, ttl, owner, label}, '|')
redis.call('SET', lock, value, 'PX', lives)
enlist(now / 1000 + lives)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
redis.call('HSET', tail, 'fence', fencing_token, fencing_token % PAST_HOLDERS, value)
redis.call('PEXPIRE', tail, remembers(ttl, fencing_token))
return {1, fencing_token, acquired_at}
