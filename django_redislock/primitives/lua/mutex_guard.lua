-- Part: a mutex that is given to nobody new after lost data.
--
-- KEYS   as for mutex_ask.lua; the last one is the guard
-- Gives  acquire(ttl, says, inbox, ticket)  as mutex_ask.lua, and besides
--        {4, ms, now µs, ticket}            nobody has it, and nobody new gets it for so long
-- luacheck: read globals now integer lock gone token leave_queue pause, globals acquire

local ask = acquire

acquire = function(ttl, says, inbox, ticket)
  if redis.call('EXISTS', lock, gone) == 0 then
    local left = pause(KEYS[#KEYS], ttl)
    if left then
      if inbox == '' then leave_queue(token) end
      return {4, left, integer(now), ticket ~= '' and ticket or integer(now)}
    end
  end
  return ask(ttl, says, inbox, ticket)
end
