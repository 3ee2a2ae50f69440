-- Remove a lock without its token, for an operator. A holder of ours is told why at its next
-- renewal; an old client is told nothing.
--
-- KEYS     as in timestamp.lua; 6 is for what the operator saw
-- ARGV     1, 2 as in timestamp.lua: the token is that of the holder that the operator saw, or the
--          whole of a value of others
--          3 by, 4 reason
-- Returns  1 cleared, 0 it changed hands or was free already

-- include timestamp.lua

local value = redis.call('GET', lock)
local holder = value and redis.call('HGET', tail, 'holder')
if not value or (value ~= token and not (token_of(holder) == token and ours(value))) then
  return 0
end
-- include beside.lua
redis.call('DEL', lock)
unlist()
if value ~= token then
  local acquired_at, ttl = string.match(holder, '^[^|]*|0|(%d+)|(%d+)')
  redis.call('HDEL', tail, 'holder', 'until')
  redis.call('HSET', tail, 'lasted', integer(now - acquired_at))
  redis.call('SET', gone, table.concat({'cleared', ARGV[3], ARGV[4]}, '|'), 'PX', outlives(ttl))
end
return 1
