-- Part: the fencing tokens.
--
-- A fencing token is the server's clock in µs, or more than the last one that was given. A counter would
-- start again after lost data, eviction or a failover; a clock does not, unless it was set back. And the
-- key knows the last one, so a clock that was set back gives no smaller one.
--
-- KEYS   as in lock.lua
-- Gives  next_fence()  the text of the next fencing token
-- luacheck: read globals now integer clock CLUSTER MINUTE

local function next_fence()
  local fence = math.max(now, 1 + (tonumber(redis.call('GET', clock) or 0) or 0))
  local text = integer(fence)
  if CLUSTER then
    -- One key for each lock: it goes when the clock is well past its token.
    redis.call('SET', clock, text, 'PX', integer(MINUTE + math.max(0, (fence - now) / 1000)))
  else
    redis.call('SET', clock, text)
  end
  return text
end
