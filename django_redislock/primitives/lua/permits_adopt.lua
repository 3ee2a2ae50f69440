-- Continue a lease in another process, under a token of its own, as mutex_adopt.lua does.
-- Idempotent: sent again, it finds the place its own.
--
-- KEYS     as in permits.lua; 6 is for the old token
-- ARGV     1, 2 as in permits.lua: the old token
--          3 heir      the new token
--          4 ttl       ms
--          5 owner     without "|"
--          6 label
--          7 kind      8 limit
-- Returns  {1, fencing token, acquired at µs}  the heir holds it
--          {0, value, gone}                    not held: what is at the key if that is not ours,
--                                              what was written of the old token
--          {-2, kind}                          it is held as another kind of lock

-- include permits.lua

local heir, ttl, owner, label = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local held
if not foreign then
  expire()
  held = ends_of(heir) and heir or ends_of(token) and token
end
local record = held and redis.call('HGET', holders, held)
if not record then
  return {0, foreign and NO_ZSET, redis.call('GET', gone)}
end
local kind = string.match(record, '\t(%a+)')
if differs(ARGV[7], kind) then
  return {-2, kind}
end

local ends = math.max(ends_of(held), millis + ttl)
local fencing_token, acquired_at = string.match(record, '^[^|]*|(%d+)|(%d+)')
drop(held)
redis.call('ZADD', lock, integer(ends), heir)
redis.call('HSET', holders, heir, table.concat({heir, fencing_token, acquired_at, ttl, owner,
  label .. '\t' .. ARGV[7] .. '|' .. ARGV[8]}, '|'))
settle()
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
redis.call('HSET', tail, 'fence',
  integer(math.max(fencing_token, redis.call('HGET', tail, 'fence') or 0)))
keep_tail(ttl, fencing_token)
return {1, fencing_token, acquired_at}
