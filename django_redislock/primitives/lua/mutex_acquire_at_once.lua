-- The case of most acquires, before everything else: nobody holds the lock, and nobody waits for it. To
-- make functions, a table or the text of a number takes as long as a command here; so it makes none.
-- The time has 16 digits, so its texts compare as the numbers do; any other clock is left to what
-- follows.
--
-- KEYS, ARGV  as in mutex_acquire.lua
-- Returns     token|fencing token, which is the time of acquiring, too

do
  local keys, call = KEYS, redis.call
  local lock, clock = keys[1], keys[7]
  if lock ~= keys[5] and call('EXISTS', lock, keys[2], keys[6]) == 0 then
    local argv, time = ARGV, call('TIME')
    local ttl, micros = argv[2], time[2] .. ''  -- Dragonfly's is a number
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    local fence = time[1] .. micros
    local last = redis.pcall('SET', clock, fence, 'GET')
    if not last or (#last == #fence and last < fence and last > '1') then
      local answer = argv[1] .. '|' .. fence
      call('SET', lock, answer .. '||' .. ttl .. '|' .. argv[3], 'PX', ttl)
      return answer
    end
    -- The server's clock was set back, or the last fencing token can't be read.
    if type(last) == 'string' then call('SET', clock, last) end
  end
end
