-- Part: the last fencing token is known again if it was lost.
--
-- Gives  remember_fence(clock, fence)  let the key `clock` have `fence`, if that is more than it has. What is
--          restored so has a TTL, until the next acquire: other holders may have larger tokens
-- Needs  fence_last
-- luacheck: read globals last_of set_last

-- The server's clock gives larger tokens by itself, unless it was set back.
local function remember_fence(clock, fence)
  if fence > (last_of(clock) or 0) then set_last(clock, fence, true) end
end
