-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. It
-- never takes away what a lease has: an early request that arrives late would shorten what the
-- answer to a later one has promised. The lock of another token is not touched.
--
-- KEYS     for each lease: lock, tail, gone; then index (as in lock.lua)
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  its position, the value at the lock, why the
--                                   token may not have it}
-- luacheck: read globals now integer look token_of with_ttl VALUE remembers

local index = KEYS[#KEYS]
local listed = index ~= KEYS[1]  -- otherwise it is a cluster, as in lock.lua
local reply = {0}
for i = 1, (#KEYS - 1) / 3 do
  local lock, tail, gone = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local token, name, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local value = look(lock)
  if token_of(value) == token then
    local _, fence, _, stored = string.match(value, VALUE)
    local lives = math.max(redis.call('PTTL', lock), ttl)
    if stored == ttl then
      redis.call('PEXPIRE', lock, lives)
    else
      redis.call('SET', lock, with_ttl(value, ttl), 'PX', lives)
    end
    if listed then
      redis.call('ZADD', index, integer(math.floor(now / 1000) + lives), name)
    end
    -- The last fencing token has to be known when this lease has ended.
    if redis.call('PEXPIRE', tail, remembers(ttl, fence)) == 0 then
      redis.call('HSET', tail, 'fence', fence)
      redis.call('PEXPIRE', tail, remembers(ttl, fence))
    end
    reply[1] = 1
  else
    reply[#reply + 1] = {i, value, redis.call('GET', gone)}
  end
end
return reply
