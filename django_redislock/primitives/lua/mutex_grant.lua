-- Part: how a free mutex is given to somebody.
--
-- KEYS   as in lock.lua, of which
--        1 lock     string   a value as in value.lua
-- Gives  grant(to, ttl, lives, says, mark)
--          let the token `to` hold the lock for `lives` ms. Returns the fencing token
-- Needs  fence, index
-- luacheck: read globals now integer lock value_of next_fence enlist

local function grant(to, ttl, lives, says, mark)
  local fence = next_fence()
  if mark ~= '|' then enlist(now / 1000 + lives) end
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
  redis.call('SET', lock, value_of(to, mark, fence, integer(now), ttl, says), 'PX', lives)
  return fence
end
