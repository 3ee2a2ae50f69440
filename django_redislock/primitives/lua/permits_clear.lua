-- Take permits away without their tokens, for an operator. Their holders learn the reason at their next
-- renewals; the next waiters get the permits.
--
-- KEYS     as in permits.lua (6 is not used); then gone, of each of these tokens
-- ARGV     1, 2 as in lock.lua (1 is not used)
--          3 by      without "|"
--          4 reason
--          5 on      the tokens of the holders that the operator saw
-- Returns  for each of these: 1 its permit was taken away, 0 it no longer had one
-- luacheck: read globals VALUE outlives check_types hand_over ends_of fits is_handed enter drop expire
-- luacheck: read globals settle grant

local by, reason = ARGV[3], ARGV[4]

check_types()
expire()
local cleared = {}
for i = 5, #ARGV do
  cleared[i - 4] = 0
  if ends_of(ARGV[i]) then
    cleared[i - 4] = 1
    local record = drop(ARGV[i])
    -- A waiter that has not confirmed its permit does not know of it: it goes on waiting.
    if not record or not is_handed(record) then
      local _, _, _, ttl = string.match(record or '', VALUE)
      local why = by .. '|' .. reason
      redis.call('SET', KEYS[i + 3], 'cleared|' .. why, 'PX', outlives(ttl or 0))
      if record then enter(record, 'cleared', '|' .. why) end
    end
  end
end
hand_over(grant, nil, fits)
settle()
return cleared
