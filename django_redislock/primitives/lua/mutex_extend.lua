-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. It
-- never takes away what a lease has: an early request that arrives late would shorten what the
-- answer to a later one has promised. A lease that is not ours is not touched.
--
-- KEYS     for each lease: lock, tail, gone; then index (as in mutex.lua)
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, who holds it, why we don't}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local index = KEYS[#KEYS]
-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'
local reply = {0}
for i = 1, (#KEYS - 1) / 3 do
  local lock, tail, gone = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local token, name, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then value = NO_STRING end
  if value and string.sub(value, 1, 32) == token then
    local before, stored, after = string.match(value, '^([^|]*|%d+|%d+|)(%d+)(|.*)$')
    local lives = math.max(redis.call('PTTL', lock), ttl)
    if stored == ttl then
      redis.call('PEXPIRE', lock, lives)
    else
      redis.call('SET', lock, before .. ttl .. after, 'PX', lives)
    end
    if index ~= KEYS[1] then  -- else it is a cluster, as in mutex.lua
      redis.call('ZADD', index, string.format('%.0f', now + lives), name)
    end
    -- The last fencing token has to be known when this lease has ended (as in mutex.lua).
    local fence = string.match(before, '|(%d+)|')
    local remembers = math.max(60000, 3 * ttl) + math.max(0, math.ceil(fence / 1000 - now))
    if redis.call('PEXPIRE', tail, remembers) == 0 then
      redis.call('HSET', tail, 'fence', fence)
      redis.call('PEXPIRE', tail, remembers)
    end
    reply[1] = 1
  else
    reply[#reply + 1] = {i, value, redis.call('GET', gone)}
  end
end
return reply
