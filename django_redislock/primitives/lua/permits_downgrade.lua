-- Hold a permit as another kind from now on, without a gap: a writer becomes a reader, and readers
-- that have waited behind it go in. Idempotent.
--
-- KEYS     as in permits.lua
-- ARGV     1 as in lock.lua
--          2 kind
--          3 limit
-- Returns  {1}               it is held as this kind
--          {0, value, gone}  not held: NO_ZSET if the key has another type, why our token may not have it
-- Needs  lock, queue, permits_grant
-- luacheck: read globals lock gone token holders foreign NO_ZSET ends_of hand_over expire settle fits
-- luacheck: read globals grant

local kind, limit = ARGV[2], ARGV[3]

if not foreign then expire() end
local record = not foreign and ends_of(token) and redis.call('HGET', holders, token)
if not record then
  return {0, foreign and NO_ZSET, redis.call('GET', gone)}
end
-- First, since a full Redis denies other writes, but not after one that it has allowed.
redis.call('PEXPIRE', lock, math.max(1, redis.call('PTTL', lock)))
redis.call('HSET', holders, token,
  string.match(record, '^[^\t]*') .. '\t' .. kind .. '|' .. limit)
settle(hand_over(grant, nil, fits))
return {1}
