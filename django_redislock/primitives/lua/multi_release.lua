-- Give back the locks, or the place in a queue; each is handed to its next waiter.
-- Repeated, it changes nothing, as mutex_release.lua.
--
-- KEYS     as in multi.lua
-- ARGV     1 as in lock.lua
--          2 withdraw  as in mutex_release.lua
-- Returns  {1}                          all released
--          {0, value, gone, number}     the lock of this number, and perhaps others, was not held:
--                                       who holds it now, what was written of our token
-- luacheck: read globals lock LOCKS turn_to give_back, globals busy

local answer, failure = {1}, nil
for i = 1, LOCKS do
  turn_to(i)
  local ok, reply = pcall(give_back, ARGV[2] == '1')
  if redis.call('EXISTS', lock) == 1 then busy[lock] = i end
  if not ok then
    failure = reply
  elseif reply[1] == 0 and answer[1] == 1 then
    answer = {0, reply[2], reply[3], i}
  end
end
-- A key of another type beside one of the locks keeps none of the others.
if failure then error(failure, 0) end
return answer
