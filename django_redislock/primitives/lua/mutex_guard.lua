-- Part: a mutex that is given to nobody new after lost data.
--
-- KEYS   as for mutex_ask.lua; the last one is the guard
-- Gives  acquire(ttl, says, inbox, ticket)  as mutex_ask.lua, and besides
--        {4, ms, now µs, ticket}            nobody has one of the names, and nobody new gets it for so long
-- Needs  guard, mutex_ask
-- luacheck: read globals now integer lock gone token leave_queue pause LOCKS turn_to, globals acquire

local ask = acquire

acquire = function(ttl, says, inbox, ticket)
  local left
  for i = 1, LOCKS do
    turn_to(i)
    if not left and redis.call('EXISTS', lock, gone) == 0 then
      left = pause(KEYS[#KEYS], ttl)
    end
  end
  if not left then return ask(ttl, says, inbox, ticket) end
  for i = 1, LOCKS do
    turn_to(i)
    if inbox == '' then leave_queue(token) end
  end
  return {4, left, integer(now), ticket ~= '' and ticket or integer(now)}
end
