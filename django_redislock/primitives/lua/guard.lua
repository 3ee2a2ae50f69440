-- Part: whether this server has forgotten locks.
--
-- The guard is there as long as the data are. A server without it has lost them, or is new. Whoever
-- misses it first writes down the time. A lease that was forgotten has ended when its ttl has passed
-- since then, unless its holder has reinstated it. So a lock with this ttl is given to nobody new before.
--
-- KEYS   somewhere the guard: a string, the time since which nothing was forgotten, µs; without a TTL
-- Gives  pause(guard, ttl)  for how many more ms a lock with this ttl is given to nobody new; or false
-- Needs  clock
-- luacheck: read globals now integer

local function pause(guard, ttl)
  local since = redis.pcall('GET', guard)
  since = type(since) == 'string' and string.find(since, '^%d+$') and tonumber(since)
  -- If it can't be read, or the clock was set back, nobody knows how long ago it was.
  if not since or since > now then
    since = now
    redis.call('SET', guard, integer(now))
  end
  local left = ttl - math.floor((now - since) / 1000)
  return left > 0 and left
end
