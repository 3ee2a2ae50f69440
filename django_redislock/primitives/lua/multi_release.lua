-- Give back the locks of all names, or the place in a queue; each is handed to its next waiter.
-- Idempotent, as mutex_release.lua.
--
-- KEYS     as in multi.lua
-- ARGV     1, 2 as in multi.lua
--          3 withdraw  as in mutex_release.lua
--          4 on        the other names
-- Returns  {1}                          all released, now or before
--          {0, value, gone, number}     the name of this number, and perhaps others, was not held:
--                                       its value, why our token may not have it
-- luacheck: read globals lock name NAMES turn_to give_back, globals busy

local answer = {1}
for i = 1, NAMES do
  turn_to(i, 4)
  local reply = give_back(ARGV[3] == '1')
  if redis.call('EXISTS', lock) == 1 then busy[name] = i end
  if reply[1] == 0 and answer[1] == 1 then
    answer = {0, reply[2], reply[3], i}
  end
end
return answer
