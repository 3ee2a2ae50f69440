-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. It
-- never takes away what a lease has: an early request that arrives late would shorten what the
-- answer to a later one has promised. A lease that is not ours is not touched.
--
-- KEYS     for each lease its lock; then index, clock (as in lock.lua); then, if it is wanted why a lease
--          is not held, for each lease its gone
-- ARGV     1 the word that the answer begins with
--          2 store  1: the ttl is another one than at the lock, and is written there
--          then for each lease: token, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, who holds it, why we don't}
-- luacheck: read globals now integer look with_ttl parts_of is_lost remember_fence

local number, store = #ARGV / 2 - 1, ARGV[2] == '1'
local index, clock = KEYS[number + 1], KEYS[number + 2]
local listed = index ~= KEYS[1]  -- else it is a cluster, as in lock.lua
local lost = is_lost(clock)
local millis = math.floor(now / 1000)
local reply, scores, newest = {0}, {}, 0
local ttl, lives, ends
for i = 1, number do
  local lock, value = KEYS[i], look(KEYS[i])
  if value and string.sub(value, 1, 32) == ARGV[2 * i + 1] then
    if ttl ~= ARGV[2 * i + 2] then  -- most leases have the same
      ttl = ARGV[2 * i + 2]
      lives = tonumber(ttl)
      ends = integer(millis + lives)
    end
    local left = redis.call('PTTL', lock)
    if store then
      -- First, since a full Redis denies other writes, but not after one that it has allowed.
      redis.call('PEXPIRE', lock, ttl)
      redis.call('SET', lock, with_ttl(value, ttl), 'PX', math.max(left, lives))
    elseif left < lives then
      redis.call('PEXPIRE', lock, ttl)
    end
    if listed and left < lives and string.sub(value, 33, 33) ~= '|' then
      scores[#scores + 1] = ends
      scores[#scores + 1] = lock
    end
    if lost then
      local _, _, fence = parts_of(value)
      newest = math.max(newest, tonumber(fence or 0))
    end
    reply[1] = 1
  else
    local gone = KEYS[number + 2 + i]
    reply[#reply + 1] = {i, value, gone and redis.call('GET', gone) or false}
  end
end
if scores[1] then redis.call('ZADD', index, unpack(scores)) end
if lost then remember_fence(clock, newest) end
return reply
