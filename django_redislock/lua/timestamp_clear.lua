-- Remove a lock without its token, for an operator. A holder of ours is told why at its next
-- renewal; an old client is told nothing.
--
-- KEYS     1 lock  2 tail  3 index  4 gone, of what the operator saw  (as in timestamp.lua)
-- ARGV     1 seen    the token of the holder that the operator saw, or the whole of a value of others
--          2 name
--          3 by, 4 reason
-- Returns  1 cleared, 0 it changed hands or was free already

-- include timestamp.lua

local lock, tail, index, gone = unpack(KEYS)
index = index ~= lock and index
local seen, name, by, reason = unpack(ARGV)

local value = redis.call('GET', lock)
local holder = value and redis.call('HGET', tail, 'holder')
if not value or (value ~= seen and not (token_of(holder) == seen and ours(tail, value))) then
  return 0
end
redis.call('DEL', lock)
unlist(index, name)
if value ~= seen then
  local acquired_at, ttl = string.match(holder, '^[^|]*|0|(%d+)|(%d+)')
  redis.call('HDEL', tail, 'holder', 'until')
  redis.call('HSET', tail, 'lasted', integer(now - acquired_at))
  redis.call('SET', gone, table.concat({'cleared', by, reason}, '|'),
    'PX', math.max(MINUTE, 3 * ttl))
end
return 1
