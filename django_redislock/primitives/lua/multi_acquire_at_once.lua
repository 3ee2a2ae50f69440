-- The case of most acquires, before everything else, as mutex_acquire_at_once.lua: nobody holds any of the
-- locks, and nobody waits for them.
--
-- KEYS, ARGV  as in multi_acquire.lua
-- Returns     token|fencing token of all, which is the time of acquiring, too

do
  local keys, call = KEYS, redis.call
  local last_lock, clock = #keys - 6, keys[#keys]
  local watched = {}
  for i = 1, last_lock, 5 do
    watched[#watched + 1] = keys[i]
    watched[#watched + 1] = keys[i + 1]
    watched[#watched + 1] = keys[i + 4]
  end
  if keys[#keys - 1] ~= keys[1] and call('EXISTS', unpack(watched)) == 0 then
    local argv, time = ARGV, call('TIME')
    local ttl, micros = argv[2], time[2] .. ''  -- Dragonfly's is a number
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    local fence = time[1] .. micros
    local last = redis.pcall('SET', clock, fence, 'GET')
    if not last or (#last == #fence and last < fence and last > '1') then
      local answer = argv[1] .. '|' .. fence
      local value = answer .. '||' .. ttl .. '|' .. argv[3]
      for i = 1, last_lock, 5 do call('SET', keys[i], value, 'PX', ttl) end
      return answer
    end
    -- The server's clock was set back, or the last fencing token can't be read.
    if type(last) == 'string' then call('SET', clock, last) end
  end
end
