-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. As
-- mutex_extend.lua: it never takes away what a lease has, and a lease that is not ours is not touched.
--
-- KEYS     for each lease: lock, holders; then index, clock (as in permits.lua); then, if it is wanted
--          why a lease is not held, for each lease its gone
-- ARGV     1 the word that the answer begins with
--          2 store  1: the ttl is another one than at the lock, and is written there
--          then for each lease: token, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, what is at the key if that is not ours, why
--                                   we don't hold it}
-- luacheck: read globals now integer parts_of with_ttl mark_of MINUTE is_lost remember_fence

local NO_ZSET = 'no sorted set'
local number, store = #ARGV / 2 - 1, ARGV[2] == '1'
local index, clock = KEYS[2 * number + 1], KEYS[2 * number + 2]
local listed = index ~= KEYS[1]  -- else it is a cluster, as in lock.lua
local lost = is_lost(clock)
local millis = math.floor(now / 1000)
local reply, scores, newest = {0}, {}, 0
local ttl, lives, ends
for i = 1, number do
  local lock, holders, token = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i + 1]
  local its_end = redis.pcall('ZSCORE', lock, token)
  local value = type(its_end) == 'table' and NO_ZSET
  local record = not value and its_end and tonumber(its_end) > millis
    and redis.call('HGET', holders, token)
  if record then
    if ttl ~= ARGV[2 * i + 2] then  -- most leases have the same
      ttl = ARGV[2 * i + 2]
      lives = tonumber(ttl)
      ends = integer(millis + lives)
    end
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    local left = redis.call('PTTL', lock)
    if left < lives then
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', holders, lives + MINUTE)
    end
    if tonumber(its_end) < millis + lives then redis.call('ZADD', lock, ends, token) end
    if lost then
      local _, _, fence = parts_of(record)
      newest = math.max(newest, tonumber(fence or 0))
    end
    if store then redis.call('HSET', holders, token, with_ttl(record, ttl)) end
    if listed and left < lives and mark_of(record) ~= '|' then
      scores[#scores + 1] = ends
      scores[#scores + 1] = lock
    end
    reply[1] = 1
  else
    local gone = KEYS[2 * number + 2 + i]
    reply[#reply + 1] = {i, value, gone and redis.call('GET', gone) or false}
  end
end
if scores[1] then redis.call('ZADD', index, unpack(scores)) end
if lost then remember_fence(clock, newest) end
return reply
