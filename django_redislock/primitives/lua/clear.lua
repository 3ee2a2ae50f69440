-- Part: a lock that an operator takes away.
--
-- ARGV   2 by      without "|"
--        3 reason
-- Gives  tell_cleared(gone, value)  tell the holder why, which had this value (as in value.lua, perhaps with
--                                   a tab and more), and write down that its hold has ended
-- Needs  memory, value, history
-- luacheck: read globals parts_of outlives write_end

local why = ARGV[2] .. '|' .. ARGV[3]

local function tell_cleared(gone, value)
  local _, mark, _, _, ttl = parts_of(value)
  -- A waiter that has not confirmed the lock does not know of it: it waits on, and is told nothing.
  if mark == '?' then return end
  redis.call('SET', gone, 'cleared|' .. why, 'PX', outlives(ttl or 0))
  write_end(string.match(value, '^[^\t]*'), 'cleared', '|' .. why)
end
