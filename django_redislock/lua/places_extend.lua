-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. As
-- mutex_extend.lua: it never takes away what a lease has, and one that is not ours is not touched.
--
-- KEYS     for each lease: lock, holders, tail, gone; then index (as in places.lua)
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, what is at the key if that is not ours, why
--                                   we don't}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local index = KEYS[#KEYS]
-- What is at the key when it is of another type: not ours, that much is certain.
local NO_ZSET = 'no sorted set'
local reply = {0}
for i = 1, #ARGV / 3 do
  local lock, holders, tail, gone = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  local token, name, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local ends = redis.pcall('ZSCORE', lock, token)
  local value = type(ends) == 'table' and NO_ZSET
  local record = not value and ends and tonumber(ends) > now and redis.call('HGET', holders, token)
  if record then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
    redis.call('ZADD', lock, string.format('%.0f', math.max(ends, now + ttl)), token)
    local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', lock, last - now)
    redis.call('PEXPIRE', holders, last - now + 60000)
    local before, fence, stored, after = string.match(record, '^([^|]*|(%d+)|%d+|)(%d+)(|.*)$')
    if tonumber(stored) ~= ttl then
      redis.call('HSET', holders, token, before .. ARGV[3 * i] .. after)
    end
    if index ~= KEYS[1] then  -- else it is a cluster, as in queue.lua
      redis.call('ZADD', index, last, name)
    end
    local left = redis.call('PTTL', tail)
    -- The last fencing token has to be known when this lease has ended (as in places.lua). It may be
    -- that of another one.
    if left == -2 then
      for _, other in ipairs(redis.call('HVALS', holders)) do
        fence = math.max(fence, string.match(other, '^[^|]*|(%d+)|') or 0)
      end
      redis.call('HSET', tail, 'fence', string.format('%.0f', fence))
    end
    local remembers = math.max(60000, 3 * ttl) + math.max(0, math.ceil(fence / 1000 - now))
    redis.call('PEXPIRE', tail, math.max(left, remembers))
    reply[1] = 1
  else
    reply[#reply + 1] = {i, value, redis.call('GET', gone)}
  end
end
return reply
