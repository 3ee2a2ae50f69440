-- Take places away without their tokens, for an operator. Their holders are told why at their next
-- renewals; the next waiters get the places.
--
-- KEYS     as in permits.lua (6 is not used); then of each of those tokens gone
-- ARGV     1, 2 as in permits.lua (1 is not used)
--          3 by, 4 reason
--          and the tokens of the holders that the operator saw
-- Returns  for each of these: 1 it was taken away, 0 it had none any more

-- include permits.lua

-- include beside.lua
expire()
local cleared = {}
for i = 5, #ARGV do
  cleared[i - 4] = 0
  if ends_of(ARGV[i]) then
    cleared[i - 4] = 1
    local record = drop(ARGV[i])
    -- A waiter that has not confirmed it does not know of it: it waits on, and is told nothing.
    if not record or not is_handed(record) then
      local ttl = record and string.match(record, '^[^|]*|%d+|%d+|(%d+)') or 0
      local why = ARGV[3] .. '|' .. ARGV[4]
      redis.call('SET', KEYS[i + 3], 'cleared|' .. why, 'PX', outlives(ttl))
      if record then enter(record, 'cleared', '|' .. why) end
    end
  end
end
hand_over(grant, nil, fits)
settle()
return cleared
