-- Give back the locks, or the place in a queue; each is handed to its next waiter.
-- Repeated, it changes nothing, as mutex_release.lua.
--
-- KEYS     as in multi.lua
-- ARGV     1 as in lock.lua
--          2 withdraw  as in mutex_release.lua
-- Returns  {1}                          all released
--          {0, value, gone, number}     the lock of this number, and perhaps others, was not held:
--                                       who holds it now, what was written of our token
-- luacheck: read globals lock queue LOCKS turn_to let_go hand_over grant_all unlist

local answer = {1}
local free = {}
for i = 1, LOCKS do
  turn_to(i)
  local reply, mark = let_go(ARGV[2] == '1')
  if mark then
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    table.insert(free, {number = i, mark = mark, since = tonumber(first[2]) or math.huge})
  elseif answer[1] == 1 then
    answer = {0, reply[2], reply[3], i}
  end
end

-- Who waits for longest comes first: it may need several of them.
table.sort(free, function(one, other) return one.since < other.since end)
for _, its in ipairs(free) do
  turn_to(its.number)
  local handed = redis.call('EXISTS', lock) == 1 or hand_over(grant_all)
  if not handed and its.mark ~= '|' then unlist() end
end
return answer
