-- Let many leases live for another ttl from now; a TTL that somebody removed is repaired. Like
-- mutex_extend.lua, it never shortens a lease, and does not touch the permits of other tokens.
--
-- KEYS     for each lease: as in permits.lua
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  its position, NO_ZSET if the key has another type, why
--                                   the token may not have it}
-- luacheck: globals lock tail gone holders token name
-- luacheck: read globals integer VALUE with_ttl MOST millis NO_ZSET keep_tail settle

local reply = {0}
for i = 1, #ARGV / 3 do
  lock, tail, gone, holders = KEYS[7 * i - 6], KEYS[7 * i - 3], KEYS[7 * i - 1], KEYS[7 * i]
  token, name = ARGV[3 * i - 2], ARGV[3 * i - 1]
  local ttl = ARGV[3 * i]
  local ends = redis.pcall('ZSCORE', lock, token)
  local value = type(ends) == 'table' and NO_ZSET
  local record = not value and ends and tonumber(ends) > millis
    and redis.call('HGET', holders, token)
  if record then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
    redis.call('ZADD', lock, integer(math.max(ends, millis + ttl)), token)
    settle()
    local _, fence, _, stored = string.match(record, VALUE)
    if stored ~= ttl then
      redis.call('HSET', holders, token, with_ttl(record, ttl))
    end
    -- The last fencing token has to be known when this lease has ended. If the tail was lost, another
    -- holder may have it: up to MOST other holders are read here, and the rest come with their extensions.
    local known = tonumber(redis.call('HGET', tail, 'fence') or 0)
    local last = math.max(known, fence)
    if known == 0 then
      local others = redis.call('ZRANGE', lock, 0, MOST - 1, 'REV')
      for _, other in ipairs(redis.call('HMGET', holders, unpack(others))) do
        local _, its_fence = string.match(other or '', VALUE)
        last = math.max(last, its_fence or 0)
      end
    end
    if last > known then redis.call('HSET', tail, 'fence', integer(last)) end
    keep_tail(ttl, fence)
    reply[1] = 1
  else
    reply[#reply + 1] = {i, value, redis.call('GET', gone)}
  end
end
return reply
