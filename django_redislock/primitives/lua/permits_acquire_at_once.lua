-- The case of most acquires, before everything else, as mutex_acquire_at_once.lua: nobody holds a permit, and
-- nobody waits for one.
--
-- KEYS, ARGV  as in permits_acquire.lua
-- Returns     token|fencing token|acquired at, µs

do
  local lock, clock, holders = KEYS[1], KEYS[7], KEYS[8]
  if lock ~= KEYS[5] and redis.call('EXISTS', lock, KEYS[2], KEYS[6], holders) == 0 then
    local time = redis.call('TIME')
    local fence = time[1] .. string.sub('00000' .. time[2], -6)
    local last = redis.call('SET', clock, fence, 'GET')
    if (tonumber(last) or 0) < tonumber(fence) then
      local token, ttl = ARGV[1], ARGV[2]
      redis.call('HSET', holders, token, token .. '|' .. fence .. '|' .. fence .. '|' .. ttl .. '|'
        .. ARGV[3] .. '\t' .. ARGV[6] .. '|' .. ARGV[7])
      redis.call('PEXPIRE', holders, ttl + 60000)
      -- Last, so that whatever ends the script, nothing stays locked.
      redis.call('ZADD', lock, string.sub(fence, 1, -4) + ttl, token)
      redis.call('PEXPIRE', lock, ttl)
      return token .. '|' .. fence .. '|' .. fence
    end
    -- The server's clock was set back.
    redis.call('SET', clock, last)
  end
end
