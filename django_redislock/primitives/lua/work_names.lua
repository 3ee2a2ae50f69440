-- Look at the tasks of many names, without touching anything: the names that are noted for longest come
-- first, those with parked or running tasks. A name with a damaged key is left out.
--
-- KEYS     as in work.lua, of the name "-"
-- ARGV     1 the word that the answer begins with
--          2 skip  3 limit  names
--          4 most  promoted and running ones of each name; of the parked ones, the first
-- Returns  {now µs, how many names were looked at, each as in work_seen.lua, ...}
-- Needs  lock, work_seen
-- luacheck: read globals now integer millis names seen
-- luacheck: globals lock holders claim parked sent messages runs

if names == lock then return {integer(now), 0} end  -- a cluster
local prefix = string.sub(lock, 1, -3)
local some = redis.call('ZRANGE', names, '+inf', integer(millis), 'BYSCORE', 'REV', 'LIMIT', ARGV[2], ARGV[3])
local found = {integer(now), #some}
for _, name in ipairs(some) do
  lock = prefix .. name .. '}'
  holders, claim, parked = lock .. ':holders', lock .. ':claim', lock .. ':parked'
  sent, messages, runs = lock .. ':sent', lock .. ':messages', lock .. ':runs'
  local readable, its = pcall(seen, name, tonumber(ARGV[4]), 1)
  if readable then found[#found + 1] = its end
end
return found
