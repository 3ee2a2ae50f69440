-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. As
-- mutex_extend.lua: it never takes away what a lease has, and a lease that is not ours is not touched.
--
-- KEYS     for each lease: lock, holders, gone; then index, clock (as in permits.lua)
-- ARGV     1 the word that the answer begins with
--          then for each lease: token, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, what is at the key if that is not ours, why
--                                   we don't hold it}
-- luacheck: read globals now integer VALUE with_ttl mark_of MINUTE is_lost remember_fence

local NO_ZSET = 'no sorted set'
local index, clock = KEYS[#KEYS - 1], KEYS[#KEYS]
local listed = index ~= KEYS[1]  -- else it is a cluster, as in lock.lua
local lost = is_lost(clock)
local millis = math.floor(now / 1000)
local reply, scores, newest = {0}, {}, 0
for i = 1, (#KEYS - 2) / 3 do
  local lock, holders, token, ttl = KEYS[3 * i - 2], KEYS[3 * i - 1], ARGV[2 * i], ARGV[2 * i + 1]
  local ends = redis.pcall('ZSCORE', lock, token)
  local value = type(ends) == 'table' and NO_ZSET
  local record = not value and ends and tonumber(ends) > millis
    and redis.call('HGET', holders, token)
  if record then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    local lives = math.max(redis.call('PTTL', lock), ttl)
    redis.call('PEXPIRE', lock, lives)
    redis.call('PEXPIRE', holders, lives + MINUTE)
    redis.call('ZADD', lock, 'GT', integer(millis + ttl), token)
    local _, _, fence, _, stored = string.match(record, VALUE)
    newest = math.max(newest, fence)
    if stored ~= ttl then
      redis.call('HSET', holders, token, with_ttl(record, ttl))
    end
    if listed and mark_of(record) ~= '|' then
      scores[#scores + 1] = integer(millis + lives)
      scores[#scores + 1] = lock
    end
    reply[1] = 1
  else
    reply[#reply + 1] = {i, value, redis.call('GET', KEYS[3 * i])}
  end
end
if scores[1] then redis.call('ZADD', index, 'GT', unpack(scores)) end
if lost then remember_fence(clock, newest) end
return reply
