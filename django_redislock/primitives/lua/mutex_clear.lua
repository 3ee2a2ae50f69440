-- Remove a lock without its token, for an operator. The holder is told why at its next
-- renewal; the next waiter gets the lock.
--
-- KEYS     as in mutex.lua; 6 is for the token of the holder that the operator saw
-- ARGV     1, 2 as in mutex.lua: the token is that of the holder that the operator saw, or
--          the whole of a stranger's value
--          3 by, 4 reason
-- Returns  1 cleared, 0 it changed hands or was free already

-- include lock.lua
-- include mutex.lua
-- include queue.lua

local value = redis.call('GET', lock)
if not value then return 0 end
local fencing_token, acquired_at, ttl
if value ~= token then
  fencing_token, acquired_at, ttl = string.match(value, '^[^|]*|(%d+)|(%d+)|(%d+)|')
  if not fencing_token or holder(value) ~= token then return 0 end
end
-- include beside.lua
ttl = ttl or 0
redis.call('DEL', lock)
if fencing_token then
  redis.call('HSET', tail, 'fence', fencing_token)
  redis.call('PEXPIRE', tail, remembers(0, fencing_token))
end
-- A waiter that has not confirmed it does not know of it: it waits on, and is told nothing.
if redis.call('HGET', tail, 'handed') ~= token then
  redis.call('SET', gone, table.concat({'cleared', ARGV[3], ARGV[4]}, '|'), 'PX', outlives(ttl))
  if fencing_token then
    local lasted = integer(now - acquired_at)
    redis.call('HSET', tail, fencing_token % HOLDERS,
      value .. '\t' .. table.concat({'cleared', lasted, ARGV[3], ARGV[4]}, '|'))
  end
end
if not hand_over(grant) then
  unlist()
end
return 1
