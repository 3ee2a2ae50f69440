-- Part: what a holder has noted for its successor.
--
-- KEYS   as in locks.lua, of which
--        6 noted  string   token of the holder that took it over or wrote it|how many have taken it over|
--                          turn, as in mutex_note.lua|when it was written, µs|done|total|done when its
--                          writer began|JSON
-- Gives  inherited()  let our token take the note over, once. Returns the note, or nil: there is none
-- Needs  clock
-- luacheck: read globals integer noted token

local function inherited()
  local text = redis.pcall('GET', noted)  -- the lock is ours by now, whatever another program has put here
  local by, times, rest = string.match(type(text) == 'string' and text or '', '^(%w*)|(%d+)|%d+|(.*)$')
  if not by or by == token then return by and text end
  text = table.concat({token, integer(times + 1), 0, rest}, '|')
  redis.call('SET', noted, text, 'KEEPTTL')
  return text
end
