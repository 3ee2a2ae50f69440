-- Part: the last fencing token is known again if it was lost.
--
-- Gives  is_lost(clock)                whether the key `clock` has lost the last fencing token. On a cluster
--                                      nobody knows, since it has a TTL there
--        remember_fence(clock, fence)  let it have `fence`, if that is more than it has
-- Needs  fence_last
-- luacheck: read globals last_of set_last

-- What a renewal has restored has a TTL, until the next acquire: other holders may have larger tokens.
local function is_lost(clock)
  return redis.call('PTTL', clock) ~= -1
end

-- The server's clock gives larger tokens by itself, unless it was set back.
local function remember_fence(clock, fence)
  if fence > (last_of(clock) or 0) then set_last(clock, fence, true) end
end
