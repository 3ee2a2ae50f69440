-- Part: the index of locks.
--
-- Gives  enlist(ends)    list the name; its lease ends at that time, ms
--        unlist()        remove the name
--        unlist_ended()  remove names whose leases have ended without a release: no other script does
-- luacheck: read globals now integer lock index name CLUSTER MINUTE MOST

local function enlist(ends)
  if not CLUSTER then redis.call('ZADD', index, integer(ends), name) end
end

local function unlist()
  if not CLUSTER then redis.call('ZREM', index, name) end
end

local function unlist_ended()
  if CLUSTER then return end
  local ended = redis.call('ZCOUNT', index, '-inf', integer(now / 1000 - MINUTE))
  if ended > 0 then
    redis.call('ZREMRANGEBYRANK', index, 0, math.min(ended, MOST) - 1)
  end
end
