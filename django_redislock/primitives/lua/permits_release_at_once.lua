-- The case of most releases, before everything else, as mutex_release_at_once.lua: nothing else was written
-- down of the holder, and nobody waits.
--
-- KEYS, ARGV  as in permits_release.lua
-- Returns     token

if ARGV[2] ~= '1' and redis.call('EXISTS', KEYS[2]) == 0 then
  local lock, token, holders = KEYS[1], ARGV[1], KEYS[8]
  local record = redis.pcall('HGET', holders, token)
  -- A release that comes when the lease has just ended, and nobody has removed it, is in time: the work
  -- was done before.
  if type(record) == 'string' and string.sub(record, 33, 33) == '|'
    and redis.pcall('ZREM', lock, token) == 1 then
    redis.call('HDEL', holders, token)
    return token
  end
end
