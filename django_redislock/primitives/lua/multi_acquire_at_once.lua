-- The case of most acquires, before everything else, as mutex_acquire_at_once.lua: nobody holds any of the
-- locks, and nobody waits for them.
--
-- KEYS, ARGV  as in multi_acquire.lua
-- Returns     token|acquired at, µs|fencing token of all

do
  local index, clock = KEYS[#KEYS - 1], KEYS[#KEYS]
  local watched = {}
  for i = 1, #KEYS - 2, 5 do
    watched[#watched + 1] = KEYS[i]
    watched[#watched + 1] = KEYS[i + 1]
    watched[#watched + 1] = KEYS[i + 4]
  end
  if index ~= KEYS[1] and redis.call('EXISTS', unpack(watched)) == 0 then
    local time = redis.call('TIME')
    local fence = time[1] .. string.sub('00000' .. time[2], -6)
    local last = redis.call('SET', clock, fence, 'GET')
    if (tonumber(last) or 0) < tonumber(fence) then
      local value =
        ARGV[1] .. '|' .. fence .. '|' .. fence .. '|' .. ARGV[2] .. '|' .. ARGV[3]
      for i = 1, #KEYS - 2, 5 do redis.call('SET', KEYS[i], value, 'PX', ARGV[2]) end
      return ARGV[1] .. '|' .. fence .. '|' .. fence
    end
    -- The server's clock was set back.
    redis.call('SET', clock, last)
  end
end
