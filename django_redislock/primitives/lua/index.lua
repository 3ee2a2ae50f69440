-- Part: the index of locks. It has the locks that were held for a second, and those for which somebody
-- waits: nobody could have read a line about the others.
--
-- KEYS   1 the first lock
-- Gives  CLUSTER         on a cluster, no node knows who listens at another node, and there is no index
--        enlist(ends)    list the lock; its lease ends at that time, ms
--        list(value, pttl)  list the lock of a mutex that has this value, since somebody waits for it
--        unlist()        remove the lock
--        unlist_ended()  remove locks whose leases have ended without a release: nobody else does it
-- Needs  clock, memory, value
-- luacheck: read globals now integer lock index MINUTE MOST mark_of VALUE

local CLUSTER = index == KEYS[1]

local function enlist(ends)
  if not CLUSTER then redis.call('ZADD', index, integer(ends), lock) end
end

local function list(value, pttl)
  if mark_of(value) == '|' and string.find(value, VALUE) then
    redis.call('SETRANGE', lock, 32, '+')
    enlist(now / 1000 + math.max(0, pttl))
  end
end

local function unlist()
  if not CLUSTER then redis.call('ZREM', index, lock) end
end

local function unlist_ended()
  if CLUSTER then return end
  local ended = redis.call('ZCOUNT', index, '-inf', integer(now / 1000 - MINUTE))
  if ended > 0 then
    redis.call('ZREMRANGEBYRANK', index, 0, math.min(ended, MOST) - 1)
  end
end
