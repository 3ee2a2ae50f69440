-- Part: the last fencing token that was given.
--
-- Gives  last_of(clock)  this token; 0: none is known; nil: the key `clock` has something that no script
--                        wrote. From 2^53 on, Lua can't count one by one
--        set_last(clock, fence, passes)  let it be this token; `passes`: until the clock is well past it
-- Needs  clock, memory
-- luacheck: read globals now integer MINUTE

local function last_of(clock)
  local last = redis.pcall('GET', clock) or '0'
  if type(last) == 'table' then
    if not string.find(tostring(last.err), 'WRONGTYPE') then error(last.err, 0) end
  elseif string.find(last, '^%d+$') and tonumber(last) < 2^53 then
    return tonumber(last)
  end
end

local function set_last(clock, fence, passes)
  if passes then
    redis.call('SET', clock, integer(fence), 'PX', integer(MINUTE + math.max(0, (fence - now) / 1000)))
  else
    redis.call('SET', clock, integer(fence))
  end
end
