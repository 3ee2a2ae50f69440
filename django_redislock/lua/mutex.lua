-- What the scripts of the mutex share; each of them includes this file.
--
-- KEYS  as in queue.lua, of which here
--       1 lock     string   token|fencing token|acquired at, µs|ttl, ms|owner|label
--       4 tail     hash     what outlives the lock: fence, released, and for how long that
--                           one lasted, µs; handed, the waiter that has not confirmed yet
--                           what was handed to it; and the last HOLDERS, the one with a
--                           fencing token in the field of its remainder: its lock, and when
--                           it has ended, behind a tab, how:
--                           released|lasted, µs  or  cleared|lasted, µs|by whom|reason
-- ARGV  1, 2 as in queue.lua

-- include queue.lua

-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'

-- The token of a lock's value. It comes first and its length is fixed, so that a
-- stranger's value can never look like ours by accident.
local function holder(value)
  return value and string.sub(value, 1, 32)
end

-- Give the free lock to `to`, for `lives` ms. Returns the fencing token: the server's
-- clock, which goes on where a counter would start again (lost data, eviction, failover),
-- unless the clock went back, which the tail knows. And up to 5 more, so that its remainder counts
-- the holders: each script knows without a read in which field one is remembered, and the next one
-- takes that of the oldest. Who is found there without an end, and not at the lock, has lost it.
local function grant(to, ttl, lives, owner, label, handed)
  local fence = now
  local least = 1 + (redis.call('HGET', tail, 'fence') or 0)
  if least > fence then fence = least end
  fence = fence + (least - fence) % HOLDERS
  local fencing_token = integer(fence)
  local field = least % HOLDERS
  local value = table.concat({to, fencing_token, integer(now), ttl, owner, label}, '|')
  -- Who was handed the lock does not hold it before it knows.
  redis.call('HSET', tail, 'fence', fencing_token, 'handed', handed or '',
    field, handed and '' or value)
  redis.call('PEXPIRE', tail, remembers(ttl, fence))
  enlist(now / 1000 + lives)
  -- A name's first holder does it, and a few of the others: that is enough.
  if field == 1 then unlist_ended() end
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
  redis.call('SET', lock, value, 'PX', lives)
  return fencing_token
end
