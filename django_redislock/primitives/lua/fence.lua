-- Part: the fencing tokens.
--
-- A fencing token is the server's clock in µs, or more than the last one that was given. A counter would
-- start again after lost data, eviction or a failover; a clock does not, unless it was set back. And the
-- key knows the last one, so a clock that was set back gives no smaller one.
--
-- If the last one can't be read, the script ends before it has written anything. Then ports.py lets the key
-- have the server's time, says so, and sends the script again.
--
-- KEYS   as in lock.lua
-- Gives  next_fence()  the text of the next fencing token
-- Needs  index, fence_last
-- luacheck: read globals now integer clock CLUSTER last_of set_last

local last_fence = last_of(clock) or error('unreadable fencing token', 0)

local function next_fence()
  local fence = math.max(now, 1 + last_fence)
  if fence >= 2^53 then error('no fencing token is left in ' .. clock .. '.', 0) end
  last_fence = fence
  set_last(clock, fence, CLUSTER)  -- a cluster has one key for each lock
  return integer(fence)
end
