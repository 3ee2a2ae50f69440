-- The case of most acquires, before everything else: nobody holds the lock, and nobody waits for it. To
-- make functions, a table or the text of a number takes as long as a command here; so it makes none.
--
-- KEYS, ARGV  as in mutex_acquire.lua
-- Returns     token|fencing token|acquired at, µs

do
  local lock, clock = KEYS[1], KEYS[7]
  if lock ~= KEYS[5] and redis.call('EXISTS', lock, KEYS[2], KEYS[6]) == 0 then
    local time = redis.call('TIME')
    local fence = time[1] .. string.sub('00000' .. time[2], -6)
    local last = redis.call('SET', clock, fence, 'GET')
    if (tonumber(last) or 0) < tonumber(fence) then
      redis.call('SET', lock,
        ARGV[1] .. '|' .. fence .. '|' .. fence .. '|' .. ARGV[2] .. '|' .. ARGV[3], 'PX', ARGV[2])
      return ARGV[1] .. '|' .. fence .. '|' .. fence
    end
    -- The server's clock was set back.
    redis.call('SET', clock, last)
  end
end
