-- Remove a lock without its token, for an operator. A holder of this package learns the reason at its
-- next renewal; an old client learns nothing.
--
-- KEYS     as in timestamp.lua; 6 is for the token that the operator saw
-- ARGV     1, 2 as in lock.lua: the token is that of the holder that the operator saw, or the
--          whole of an old client's value
--          3 by      without "|"
--          4 reason
-- Returns  1 cleared, 0 it changed hands or was free already
-- luacheck: read globals now integer lock tail gone token VALUE token_of outlives check_types unlist ours

local by, reason = ARGV[3], ARGV[4]

local value = redis.call('GET', lock)
local holder = value and redis.call('HGET', tail, 'holder')
if not value or (value ~= token and not (token_of(holder) == token and ours(value))) then
  return 0
end
check_types()
redis.call('DEL', lock)
unlist()
if value ~= token then
  local _, _, acquired_at, ttl = string.match(holder, VALUE)
  redis.call('HDEL', tail, 'holder', 'until')
  redis.call('HSET', tail, 'lasted', integer(now - acquired_at))
  redis.call('SET', gone, table.concat({'cleared', by, reason}, '|'), 'PX', outlives(ttl))
end
return 1
