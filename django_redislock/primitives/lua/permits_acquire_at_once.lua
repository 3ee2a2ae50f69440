-- The case of most acquires, before everything else, as mutex_acquire_at_once.lua: nobody holds a permit, and
-- nobody waits for one.
--
-- KEYS, ARGV  as in permits_acquire.lua
-- Returns     token|fencing token, which is the time of acquiring, too

do
  local keys, call = KEYS, redis.call
  local lock, clock, holders = keys[1], keys[7], keys[8]
  if lock ~= keys[5] and call('EXISTS', lock, keys[2], keys[6], holders) == 0 then
    local argv, time = ARGV, call('TIME')
    local token, ttl, micros = argv[1], argv[2], time[2] .. ''  -- Dragonfly's is a number
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    local fence = time[1] .. micros
    local last = redis.pcall('SET', clock, fence, 'GET')
    if not last or (#last == #fence and last < fence and last > '1') then
      local answer = token .. '|' .. fence
      call('HSET', holders, token,
        answer .. '||' .. ttl .. '|' .. argv[3] .. '\t' .. argv[6] .. '|' .. argv[7])
      call('PEXPIRE', holders, ttl + 60000)
      -- Last, so that whatever ends the script, nothing stays locked.
      call('ZADD', lock, string.sub(fence, 1, -4) + ttl, token)
      call('PEXPIRE', lock, ttl)
      return answer
    end
    -- The server's clock was set back, or the last fencing token can't be read.
    if type(last) == 'string' then call('SET', clock, last) end
  end
end
