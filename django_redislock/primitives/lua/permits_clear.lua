-- Take permits away without their tokens, for an operator. Their holders are told why at their next
-- renewals; the next waiters get the permits.
--
-- KEYS     as in permits.lua (5 is not used); then gone, of each of these tokens
-- ARGV     1 the word that the answer begins with
--          2 by      without "|"
--          3 reason
--          4 on      the tokens of the holders that the operator saw
-- Returns  for each of these: 1 its permit was taken away, 0 it had none any more
-- luacheck: read globals parts_of outlives hand_over ends_of fits mark_of past drop expire
-- luacheck: read globals settle grant

local why = ARGV[2] .. '|' .. ARGV[3]

expire()
local cleared = {}
for i = 4, #ARGV do
  cleared[i - 3] = 0
  if ends_of(ARGV[i]) then
    cleared[i - 3] = 1
    local record = drop(ARGV[i])
    -- A waiter that has not confirmed its permit does not know of it: it waits on, and is told nothing.
    if not record or mark_of(record) ~= '?' then
      local _, _, _, _, ttl = parts_of(record or '')
      redis.call('SET', KEYS[i + 5], 'cleared|' .. why, 'PX', outlives(ttl or 0))
      if record then past(record, 'cleared', '|' .. why) end
    end
  end
end
hand_over(grant, nil, fits)
settle(true)
return cleared
