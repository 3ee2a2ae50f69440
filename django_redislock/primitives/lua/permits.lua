-- Part: permits, for semaphores and read-write locks.
--
-- A name has permits, and each holder takes some of them: of a semaphore, one of its `limit`; of a
-- read-write lock, a reader one of very many, and a writer all. So this is one rule, which `fits` has.
-- First come, first served: nobody passes the first waiter of the queue, even if there were room for
-- the second. So a writer that waits keeps new readers out; and permits that become free are handed to
-- as many waiters as there is room for, so readers that have waited behind a writer go in together.
--
-- Each claim says how many permits there are. When that number is changed while some are held, no
-- holder loses its permit; a claim with a smaller number waits until fewer are held, and one with a
-- larger number goes in.
--
-- KEYS   as in lock.lua, of which
--        1 lock     zset     token → when its lease ends, ms
--        8 holders  hash     the present holders: token → a value as in value.lua, and behind a tab
--                            kind|limit
-- ARGV   1 as in lock.lua
--
-- A kind is semaphore, read or write; or task (work.lua).
--
-- Gives  holders, foreign (the key is of another type), NO_ZSET, ends_first, number, ends_of,
--        held_as, differs, fits, past, drop, expire, settle
-- Needs  index, history
-- luacheck: read globals integer millis lock MINUTE MOST PAST_HOLDERS mark_of marked enlist unlist
-- luacheck: read globals write_end write_down

local holders = KEYS[8]

local NO_ZSET = 'no sorted set'
local foreign = type(redis.pcall('ZCARD', lock)) == 'table'

-- The least score of a lease that has not ended. Ended leases may still be there: `expire` removes MOST
-- of them at a time.
local alive = '(' .. integer(millis)

-- The holder whose lease ends first, and when, in ms; nil: there is no holder.
local function ends_first()
  return unpack(redis.call('ZRANGE', lock, alive, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES'))
end

-- The number of holders.
local function number()
  return redis.call('ZCOUNT', lock, alive, '+inf')
end

-- When the lease of a token ends, in ms; nil: it holds no permit.
local function ends_of(holder)
  local ends = tonumber(redis.call('ZSCORE', lock, holder) or 0)
  return ends > millis and ends or nil
end

-- The kind of lock that it is held as, by the holder whose lease ends first; nil: there is no holder, or
-- nothing is known of it.
local function held_as()
  local first = ends_first()
  local record = first and redis.call('HGET', holders, first)
  return record and string.match(record, '\t(%a+)')
end

-- Whether its holders have a lock of another kind: a semaphore is no read-write lock, and no task.
local SIDES = {read = 'lock', write = 'lock'}
local function differs(kind, held)
  return held and (SIDES[kind] or kind) ~= (SIDES[held] or held)
end

-- Whether there is room beside the holders for a claim whose label ends with a tab and `kind|limit`.
-- nil: it wants another kind of lock than they have, or a mutex, which has no tab.
local function fits(wants)
  local kind, limit = string.match(wants, '\t(%a+)|(%d+)')
  if not kind then return nil end
  local others = number()
  if others == 0 then return true end
  local held = held_as()
  if differs(kind, held) then return nil end
  if kind == 'write' or others >= tonumber(limit) then return false end
  -- A holder of whom nothing is known has all permits until its lease ends.
  return others > 1 or held and held ~= 'write' or false
end

-- Write down a holder that holds no permit any more, by this function of history.lua.
local function past(record, write, how)
  -- A waiter that was handed a permit and did not confirm it never knew of it.
  if mark_of(record) ~= '?' then write(string.match(record, '^[^\t]*'), how) end
end

-- Remove a holder. Returns its record, and whether the index has the lock. Then the history has the holder,
-- too, if `how` is given.
local function drop(from, how)
  local record = redis.call('HGET', holders, from)
  redis.call('ZREM', lock, from)
  redis.call('HDEL', holders, from)
  local listed = record and mark_of(record) ~= '|'
  if how and listed then past(record, write_end, how) end
  return record, listed
end

-- Remove holders whose leases have ended, and remember the last ones.
local function expire()
  local ended = redis.call('ZRANGE', lock, '-inf', integer(millis), 'BYSCORE', 'LIMIT', 0, MOST)
  if ended[1] then
    for i = math.max(1, #ended - PAST_HOLDERS + 1), #ended do
      local record = redis.call('HGET', holders, ended[i])
      if record then past(record, write_down) end
    end
    redis.call('ZREM', lock, unpack(ended))
    redis.call('HDEL', holders, unpack(ended))
  end
  -- The lock went with the last lease, or somebody has deleted it.
  if redis.call('EXISTS', lock) == 0 and redis.call('EXISTS', holders) == 1 then
    if redis.call('HLEN', holders) <= PAST_HOLDERS then
      for _, record in ipairs(redis.call('HVALS', holders)) do past(record, write_down) end
    end
    redis.call('UNLINK', holders)
  end
end

-- After a change: the key lives as long as the last lease. With `listed`, the index knows it, and a holder
-- has the mark: its release removes the lock from the index, or leaves that to another holder.
local function settle(listed)
  local last, ends = unpack(redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES'))
  local lives = ends and math.min(math.floor(ends - millis), 1e14) or 0
  if lives <= 0 then
    if listed then unlist() end
    return
  end
  redis.call('PEXPIRE', lock, lives)
  redis.call('PEXPIRE', holders, lives + MINUTE)
  if listed then
    enlist(ends)
    local record = redis.call('HGET', holders, last)
    if record and mark_of(record) == '|' then
      redis.call('HSET', holders, last, marked(record, '+'))
    end
  end
end
