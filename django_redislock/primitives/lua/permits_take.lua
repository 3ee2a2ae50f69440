-- Take a permit of a lock of which nobody holds one, in one step, as mutex_take.lua.
--
-- KEYS     lock, queue, gone, holders (as in permits.lua); then clock
-- ARGV     1 token, 2 ttl, 3 says, 4 kind, 5 limit  as in permits_acquire.lua
-- Returns  as mutex_take.lua

local keys, call = KEYS, redis.call
local lock, holders, clock = keys[1], keys[4], keys[5]
if call('EXISTS', lock, keys[2], keys[3], holders) == 0 then
  local argv, time = ARGV, call('TIME')
  local token, ttl, micros = argv[1], argv[2], time[2] .. ''  -- Dragonfly's is a number
  if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
  local fence = time[1] .. micros
  local last = redis.pcall('SET', clock, fence, 'GET')
  if not last or (#last == #fence and last < fence and last > '1') then
    local answer = token .. '|' .. fence
    call('HSET', holders, token,
      answer .. '||' .. ttl .. '|' .. argv[3] .. '\t' .. argv[4] .. '|' .. argv[5])
    call('PEXPIRE', holders, ttl + 60000)
    -- Last, so that whatever ends the script, nothing stays locked.
    call('ZADD', lock, string.sub(fence, 1, -4) + ttl, token)
    call('PEXPIRE', lock, ttl)
    return answer
  end
  -- The server's clock was set back, or the last fencing token can't be read.
  if type(last) == 'string' then call('SET', clock, last) end
end
return {ARGV[1]}
