-- Let many leases live for another ttl from now. Setting the TTL anew also repairs one that
-- somebody removed. A lease that is not ours is not touched.
--
-- KEYS     for each lease: lock, gone; then index (as in mutex.lua)
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  for each lease: {1}               extended
--                          {0, value, gone}  not held: who holds it, why we don't

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local index = KEYS[#KEYS]
-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'
local replies = {}
for i = 1, (#KEYS - 1) / 2 do
  local lock, gone = KEYS[2 * i - 1], KEYS[2 * i]
  local token, name, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then value = NO_STRING end
  if value and string.sub(value, 1, 32) == token then
    local before, stored, after = string.match(value, '^([^|]*|%d+|%d+|)(%d+)(|.*)$')
    if stored == ttl then
      redis.call('PEXPIRE', lock, ttl)
    else
      redis.call('SET', lock, before .. ttl .. after, 'PX', ttl)
    end
    redis.call('ZADD', index, string.format('%.0f', now + ttl), name)
    replies[i] = {1}
  else
    replies[i] = {0, value, redis.call('GET', gone)}
  end
end
return replies
