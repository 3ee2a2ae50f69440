-- What the scripts of semaphores and read-write locks share; each of them includes this file.
--
-- A name has places, and whoever holds it has some of them: of a semaphore one of its `limit`, of a
-- read-write lock a reader one of very many, and a writer all. So this is one rule; `fits` has it.
-- First come, first served: nobody passes the first one of the queue, also where there would be
-- room for the second. So a writer that waits keeps new readers from going in before it; and what
-- becomes free is handed on to as many as there is room for, so readers that have waited behind a
-- writer go in together.
--
-- How many places there are is for each to say that asks for one. When that is changed while some
-- hold it, nobody is thrown out; who says less waits until fewer hold it, who says more goes in.
--
-- KEYS  as in lock.lua, of which here
--       1 lock     zset     token → when its lease ends, ms
--       4 tail     hash     fence; lasted, of the last one that was released, µs; and the last
--                           HOLDERS whose leases have ended, in the fields 0 to 5, as mutex.lua
--                           writes them; slot is where the last one stands
--       7 holders  hash     token → token|fencing token|acquired at, µs|ttl, ms|owner|label, and
--                           behind a tab kind|limit; then "|handed" if it was handed over, and that
--                           is not confirmed yet
-- ARGV  1, 2 as in lock.lua
--
-- A kind is semaphore, read or write.

-- include lock.lua
-- include index.lua
-- include queue.lua

local holders = KEYS[7]
local millis = math.floor(now / 1000)

-- What is at the key when it is of another type: not ours, that much is certain.
local NO_ZSET = 'no sorted set'
local foreign = type(redis.pcall('ZCARD', lock)) == 'table'

-- Those whose leases have ended may still be there: `expire` takes MOST of them away at a time.
local alive = '(' .. integer(millis)

-- The one whose lease ends first, and when, in ms; nil: nobody holds it.
local function ends_first()
  return unpack(redis.call('ZRANGE', lock, alive, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES'))
end

-- How many hold it.
local function number()
  return redis.call('ZCOUNT', lock, alive, '+inf')
end

-- When the lease of a token ends, in ms; nil: it holds no place.
local function ends_of(holder)
  local ends = tonumber(redis.call('ZSCORE', lock, holder) or 0)
  return ends > millis and ends or nil
end

-- As what it is held, by the one whose lease ends first; nil: nobody does, or nothing is known of it.
local function held_as()
  local first = ends_first()
  local record = first and redis.call('HGET', holders, first)
  return record and string.match(record, '\t(%a+)')
end

-- Whether those who hold it have a lock of another kind: a semaphore is no read-write lock.
local function differs(kind, held)
  return held and (kind == 'semaphore') ~= (held == 'semaphore')
end

-- Whether there is room beside those who hold it, for one that says `wants` behind its tab. nil: it
-- wants another kind of lock than they have, or a mutex, for which nothing is there.
local function fits(wants)
  local kind, limit = string.match(wants, '\t(%a+)|(%d+)')
  if not kind then return nil end
  local others = number()
  if others == 0 then return true end
  local held = held_as()
  if differs(kind, held) then return nil end
  if kind == 'write' or others >= tonumber(limit) then return false end
  -- One of whom nothing is known has them all, until its lease ends.
  return others > 1 or held and held ~= 'write' or false
end

local function is_handed(record)
  return string.sub(record, -7) == '|handed'
end

-- Let the tail live for as long as it has to, and never shorter than before.
local function keep_tail(ttl, fence)
  redis.call('PEXPIRE', tail, math.max(redis.call('PTTL', tail), remembers(ttl, fence)))
end

-- Write down who has held a place, and how that has ended: as mutex.lua has it; "": by itself.
local function enter(record, ended, more)
  if is_handed(record) then return end  -- it never knew of it
  local value, fence, acquired_at, ttl = string.match(record, '^([^|]*|(%d+)|(%d+)|(%d+)|[^\t]*)')
  local known = redis.call('HMGET', tail, 'slot', 'fence')
  local slot = (1 + (known[1] or -1)) % HOLDERS
  if ended ~= '' then
    local lasted = integer(now - acquired_at)
    value = value .. '\t' .. ended .. '|' .. lasted .. (more or '')
    redis.call('HSET', tail, 'lasted', lasted)
  end
  redis.call('HSET', tail, 'slot', slot, slot, value,
    'fence', integer(math.max(fence, known[2] or 0)))
  keep_tail(ttl, fence)
end

local function drop(from)
  local record = redis.call('HGET', holders, from)
  redis.call('ZREM', lock, from)
  redis.call('HDEL', holders, from)
  return record
end

-- Take away those whose leases have ended, and remember the last ones.
local function expire()
  local ended = redis.call('ZRANGE', lock, '-inf', integer(millis), 'BYSCORE', 'LIMIT', 0, MOST)
  if ended[1] then
    for i = math.max(1, #ended - HOLDERS + 1), #ended do
      local record = redis.call('HGET', holders, ended[i])
      if record then enter(record, '') end
    end
    redis.call('ZREM', lock, unpack(ended))
    redis.call('HDEL', holders, unpack(ended))
  end
  -- The lock went with the last lease, or somebody has deleted it.
  if redis.call('EXISTS', lock) == 0 and redis.call('EXISTS', holders) == 1 then
    if redis.call('HLEN', holders) <= HOLDERS then
      for _, record in ipairs(redis.call('HVALS', holders)) do enter(record, '') end
    end
    redis.call('UNLINK', holders)
  end
end

-- After a change: the key lives as long as the last lease, and the index knows it.
local function settle()
  local ends = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
  local lives = ends and ends - millis or 0
  if lives <= 0 then return unlist() end
  redis.call('PEXPIRE', lock, lives)
  redis.call('PEXPIRE', holders, lives + MINUTE)
  enlist(ends)
end

-- A place for `to`, for `lives` ms. Returns the fencing token, which is as in mutex.lua the server's
-- clock, or more than the last one.
local function grant(to, ttl, lives, owner, label, handed)
  local fence = math.max(now, 1 + (redis.call('HGET', tail, 'fence') or 0))
  local fencing_token = integer(fence)
  local record = table.concat({to, fencing_token, integer(now), ttl, owner, label}, '|')
  redis.call('HSET', tail, 'fence', fencing_token)
  keep_tail(ttl, fence)
  if fence % HOLDERS == 1 then unlist_ended() end
  redis.call('HSET', holders, to, record .. (handed and '|handed' or ''))
  -- Last, and at once with an end: whatever ends the script, nothing stays locked.
  redis.call('ZADD', lock, integer(millis + lives), to)
  settle()
  return fencing_token
end
