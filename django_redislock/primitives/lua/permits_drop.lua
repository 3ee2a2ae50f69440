-- Give back a permit, as mutex_drop.lua.
--
-- KEYS     lock, queue, holders (as in permits.lua)
-- ARGV     1 token
-- Returns  as mutex_drop.lua

local lock, holders, token = KEYS[1], KEYS[3], ARGV[1]
if redis.call('EXISTS', KEYS[2]) == 0 then
  local record = redis.pcall('HGET', holders, token)
  -- A release that comes when the lease has just ended, and nobody has removed it, is in time: the work
  -- was done before.
  if type(record) == 'string' and string.sub(record, 33, 33) == '|'
    and redis.pcall('ZREM', lock, token) == 1 then
    redis.call('HDEL', holders, token)
    return token .. '|1'
  end
end
return {token}
