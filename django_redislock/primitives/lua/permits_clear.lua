-- Take permits away without their tokens, for an operator. Their holders are told why at their next
-- renewals; the next waiters get the permits.
--
-- KEYS     as in permits.lua (5 is not used); then gone, of each of these tokens
-- ARGV     1 the word that the answer begins with
--          2 by      without "|"
--          3 reason
--          4 on      the tokens of the holders that the operator saw
-- Returns  for each of these: 1 its permit was taken away, 0 it had none any more
-- Needs  lock, queue, permits_grant, clear
-- luacheck: read globals hand_over ends_of fits drop expire settle grant tell_cleared

expire()
local cleared = {}
for i = 4, #ARGV do
  cleared[i - 3] = 0
  if ends_of(ARGV[i]) then
    cleared[i - 3] = 1
    tell_cleared(KEYS[i + 5], drop(ARGV[i]) or '')
  end
end
hand_over(grant, nil, fits)
settle(true)
return cleared
