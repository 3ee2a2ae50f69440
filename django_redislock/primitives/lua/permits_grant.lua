-- Part: how a permit is given to somebody.
--
-- KEYS   as in permits.lua
-- Gives  grant(to, ttl, lives, says, mark)
--          let the token `to` have a permit for `lives` ms. Returns the fencing token
-- Needs  fence, permits
-- luacheck: read globals now integer lock holders millis value_of next_fence settle

local function grant(to, ttl, lives, says, mark)
  local fence = next_fence()
  redis.call('HSET', holders, to, value_of(to, mark, fence, integer(now), ttl, says))
  -- Last, and at once with an end: whatever ends the script, nothing stays locked.
  redis.call('ZADD', lock, integer(millis + lives), to)
  settle(mark ~= '|')
  return fence
end
