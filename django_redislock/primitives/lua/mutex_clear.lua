-- Remove a lock without its token, for an operator. The holder learns the reason at its next
-- renewal; the next waiter gets the lock.
--
-- KEYS     as in mutex_grant.lua; 6 is for the token of the holder that the operator saw
-- ARGV     1, 2 as in lock.lua: the token is that of the holder that the operator saw, or
--          the whole of a foreign value
--          3 by      without "|"
--          4 reason
-- Returns  1 cleared, 0 it changed hands or was free already
-- luacheck: read globals now integer lock tail gone token token_of VALUE unlist outlives
-- luacheck: read globals remembers PAST_HOLDERS check_types grant hand_over

local by, reason = ARGV[3], ARGV[4]

local value = redis.call('GET', lock)
if not value then return 0 end
local _, fencing_token, acquired_at, ttl
if value ~= token then
  _, fencing_token, acquired_at, ttl = string.match(value, VALUE)
  if not fencing_token or token_of(value) ~= token then return 0 end
end
check_types()
redis.call('DEL', lock)
if fencing_token then
  redis.call('HSET', tail, 'fence', fencing_token)
  redis.call('PEXPIRE', tail, remembers(0, fencing_token))
end
-- A waiter that has not confirmed the lock does not know of it: it goes on waiting.
if redis.call('HGET', tail, 'handed') ~= token then
  redis.call('SET', gone, table.concat({'cleared', by, reason}, '|'), 'PX', outlives(ttl or 0))
  if fencing_token then
    local lasted = integer(now - acquired_at)
    redis.call('HSET', tail, fencing_token % PAST_HOLDERS,
      value .. '\t' .. table.concat({'cleared', lasted, by, reason}, '|'))
  end
end
if not hand_over(grant) then
  unlist()
end
return 1
