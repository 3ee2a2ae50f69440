-- Part: several locks, of which none is given to anybody new after lost data.
--
-- KEYS     as in multi.lua; the guard is before the index
-- ARGV     2 ttl, 4 inbox, 5 ticket (as in multi_acquire.lua)
-- Returns  {4, ms, now µs, ticket}  nobody has one of them, and nobody new gets it for so long;
--          else the script goes on
-- luacheck: read globals now integer lock gone token leave_queue pause LOCKS turn_to

local left
for i = 1, LOCKS do
  turn_to(i)
  if not left and redis.call('EXISTS', lock, gone) == 0 then
    left = pause(KEYS[#KEYS - 2], tonumber(ARGV[2]))
  end
end
if left then
  for i = 1, LOCKS do
    turn_to(i)
    if ARGV[4] == '' then leave_queue(token) end
  end
  return {4, left, integer(now), ARGV[5] ~= '' and ARGV[5] or integer(now)}
end
