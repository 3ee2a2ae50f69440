-- Give back the permit of a run, and promote the messages that are next. Repeated, it changes nothing.
-- With a token that runs nothing it only heals and promotes.
--
-- KEYS     as in work.lua
-- ARGV     1 as in lock.lua
--          2 id     of the message; "": none
--          3 limit
--          4 name   for lists
--          5 forgets  1: the work is done, and its note is removed
-- Returns  {1 it was held, else 0; how many are parked; promoted; healed}
-- Needs  lock, work
-- luacheck: read globals lock token foreign ends_of drop expire settle
-- luacheck: read globals claim parked sent messages runs names since heal answer noted

local id, limit = ARGV[2], tonumber(ARGV[3])

if foreign then return {0, 0, {}, 0} end
expire()
local held = ends_of(token)
if held then
  local _, listed = drop(token, 'released')
  settle(listed)
  if ARGV[5] == '1' then redis.call('DEL', noted) end
end
redis.call('HDEL', runs, token)
redis.call('HDEL', messages, token)
-- If its lease had ended, it may be parked again: without its text, it is passed over. If it is being sent
-- already, it begins.
if not redis.call('ZSCORE', sent, id) then redis.call('HDEL', messages, id, since(id)) end
heal()
if names ~= lock and redis.call('EXISTS', claim, parked, sent, messages, runs) == 0 then
  redis.call('ZREM', names, ARGV[4])
end
return answer(limit, {held and 1 or 0, redis.call('LLEN', parked)})
