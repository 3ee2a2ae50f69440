-- Part: permits, for semaphores and read-write locks.
--
-- A name has permits, and each holder takes some of them: in a semaphore, one of its `limit`; in a
-- read-write lock, a reader takes one of very many, and a writer all. So both follow one rule, in `fits`.
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
--        4 tail     hash     fence   the last fencing token
--                            lasted  how long the last released holder held it, µs
--                            slot    the field of the last past holder
--                            0 to 5  the past holders, as in mutex_grant.lua
--        7 holders  hash     the present holders: token → a value as in value.lua, and behind a tab
--                            kind|limit; then "|handed" if the permit was handed over, and that is
--                            not confirmed yet
-- ARGV   1, 2 as in lock.lua
--
-- A kind is semaphore, read or write.
--
-- Gives  holders, millis, foreign (the key is of another type), NO_ZSET, ends_first, number, ends_of,
--        held_as, differs, fits, is_handed, keep_tail, enter, drop, expire, settle, grant
-- luacheck: read globals now integer index token name VALUE MINUTE MOST PAST_HOLDERS remembers
-- luacheck: read globals enlist unlist unlist_ended lock tail

local holders = KEYS[7]
local millis = math.floor(now / 1000)

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

-- The kind of lock of the holder whose lease ends first; nil: there is no holder, or it has no
-- record.
local function held_as()
  local first = ends_first()
  local record = first and redis.call('HGET', holders, first)
  return record and string.match(record, '\t(%a+)')
end

-- Whether the holders have a lock of another kind: a semaphore is not a read-write lock.
local function differs(kind, held)
  return held and (kind == 'semaphore') ~= (held == 'semaphore')
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
  -- A holder without a record has all permits until its lease ends.
  return others > 1 or held and held ~= 'write' or false
end

local function is_handed(record)
  return string.sub(record, -7) == '|handed'
end

-- Let the tail live as long as needed, and never shorter than before.
local function keep_tail(ttl, fence)
  redis.call('PEXPIRE', tail, math.max(redis.call('PTTL', tail), remembers(ttl, fence)))
end

-- Remember a past holder, and how its hold ended, as in mutex_grant.lua; "": its lease ended.
local function enter(record, ended, more)
  if is_handed(record) then return end  -- it never learnt of its permit
  local value = string.match(record, '^[^\t]*')
  local _, fence, acquired_at, ttl = string.match(value, VALUE)
  local known = redis.call('HMGET', tail, 'slot', 'fence')
  local slot = (1 + (known[1] or -1)) % PAST_HOLDERS
  if ended ~= '' then
    local lasted = integer(now - acquired_at)
    value = value .. '\t' .. ended .. '|' .. lasted .. (more or '')
    redis.call('HSET', tail, 'lasted', lasted)
  end
  redis.call('HSET', tail, 'slot', slot, slot, value,
    'fence', integer(math.max(fence, known[2] or 0)))
  keep_tail(ttl, fence)
end

-- Remove a holder. Returns its record.
local function drop(from)
  local record = redis.call('HGET', holders, from)
  redis.call('ZREM', lock, from)
  redis.call('HDEL', holders, from)
  return record
end

-- Remove holders whose leases have ended, and remember the last ones.
local function expire()
  local ended = redis.call('ZRANGE', lock, '-inf', integer(millis), 'BYSCORE', 'LIMIT', 0, MOST)
  if ended[1] then
    for i = math.max(1, #ended - PAST_HOLDERS + 1), #ended do
      local record = redis.call('HGET', holders, ended[i])
      if record then enter(record, '') end
    end
    redis.call('ZREM', lock, unpack(ended))
    redis.call('HDEL', holders, unpack(ended))
  end
  -- The key expired with the last lease, or somebody deleted it.
  if redis.call('EXISTS', lock) == 0 and redis.call('EXISTS', holders) == 1 then
    if redis.call('HLEN', holders) <= PAST_HOLDERS then
      for _, record in ipairs(redis.call('HVALS', holders)) do enter(record, '') end
    end
    redis.call('UNLINK', holders)
  end
end

-- After a change: let the key live as long as the last lease, and update the index.
local function settle()
  local ends = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
  local lives = ends and ends - millis or 0
  if lives <= 0 then return unlist() end
  redis.call('PEXPIRE', lock, lives)
  redis.call('PEXPIRE', holders, lives + MINUTE)
  enlist(ends)
end

-- Give `to` a permit for `lives` ms. Returns the fencing token: as in mutex_grant.lua the server's clock,
-- or more than the last one.
local function grant(to, ttl, lives, owner, label, handed)
  local fence = math.max(now, 1 + (redis.call('HGET', tail, 'fence') or 0))
  local fencing_token = integer(fence)
  local record = table.concat({to, fencing_token, integer(now), ttl, owner, label}, '|')
  redis.call('HSET', tail, 'fence', fencing_token)
  keep_tail(ttl, fence)
  if fence % PAST_HOLDERS == 1 then unlist_ended() end
  redis.call('HSET', holders, to, record .. (handed and '|handed' or ''))
  -- Last, and together with its end: an error in the script leaves nothing locked.
  redis.call('ZADD', lock, integer(millis + lives), to)
  settle()
  return fencing_token
end
