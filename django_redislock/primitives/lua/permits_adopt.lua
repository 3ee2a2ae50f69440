-- Continue a lease in another process, under a new token, as mutex_adopt.lua does. Idempotent: sent again,
-- it finds that the new token has the permit.
--
-- KEYS     as in permits.lua; 5 is for the old token
-- ARGV     1 as in lock.lua: the old token
--          2 new_token
--          3 ttl       ms
--          4 says      owner|label; the owner has no "|"
--          5 kind
--          6 limit
-- Returns  {1, fencing token, acquired at µs}  the new token holds it
--          {0, value, gone}                    not held: NO_ZSET if the key has another type,
--                                              why the old token may not have it
--          {-2, kind}                          it is held as another kind of lock
-- Needs  lock, permits
-- luacheck: read globals integer lock gone token parts_of value_of MINUTE holders millis foreign NO_ZSET
-- luacheck: read globals ends_of differs drop expire settle

local new_token, ttl, says, kind, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local held
if not foreign then
  expire()
  held = ends_of(new_token) and new_token or ends_of(token) and token
end
local record = held and redis.call('HGET', holders, held)
if not record then
  return {0, foreign and NO_ZSET, redis.call('GET', gone)}
end
local is_held_as = string.match(record, '\t(%a+)')
if differs(kind, is_held_as) then
  return {-2, is_held_as}
end

local ends = math.max(ends_of(held), millis + ttl)
local _, _, fence, acquired_at = parts_of(record)
drop(held)
redis.call('ZADD', lock, integer(ends), new_token)
redis.call('HSET', holders, new_token,
  value_of(new_token, '+', fence, acquired_at, ttl, says .. '\t' .. kind .. '|' .. limit))
settle(true)
-- An acquire of the old token may still be on its way.
redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
return {1, fence, acquired_at}
