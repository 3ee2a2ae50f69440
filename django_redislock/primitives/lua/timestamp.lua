-- Part: the TimestampLock.
--
-- KEYS   as in lock.lua, of which nobody uses the queue, and
--        1 lock  string  when the lock ends, in seconds since the epoch: the only key of old clients
--        4 tail  hash    for new clients:   holder    our last holder, as a value (value.lua) with 0
--                                                     for the fencing token
--                                           until     the value that it wrote at the key
--                                           released  the token that was released last
--                                           lasted    how long that token held the lock, µs
-- ARGV   1, 2 as in lock.lua
-- Gives  time_of, ours, holder_of, remains, writes_fractions, hold
-- luacheck: read globals now integer lock tail MINUTE outlives enlist unlist_ended

-- The loser of a GETSET moves the time that the winner has written by about the time between
-- the two commands, and by the difference of their clocks; whole seconds add one. In µs.
local A_LITTLE = 2000000

-- The time in a value, in µs; nil if it is no time of this century: then this algorithm did not write
-- it, and its meaning is unknown.
local function time_of(value)
  local seconds = value and string.match(value, '^%d+%.?%d*$') and tonumber(value)
  return seconds and seconds > 946684800 and seconds < 4102444800 and seconds * 1000000
end

-- The holder in the tail, if it holds a lock with this value; or nil. Its time is not over, and the key has
-- that time, or the time to which the loser of a GETSET has moved it.
local function ours(value)
  local holder, wrote = unpack(redis.call('HMGET', tail, 'holder', 'until'))
  local ends, says = time_of(wrote), time_of(value)
  if holder and ends and says and now <= ends and math.abs(says - ends) <= A_LITTLE then
    return holder
  end
end

-- The holder of a lock with this value: the holder in the tail; or an old client, of which only the value
-- is known; or false: it is free, or its time is over.
local function holder_of(value)
  local says = time_of(value)
  return ours(value) or not (says and says < now) and value or false
end

-- How long a lock with this value is still held, in ms; -1: without an end.
local function remains(value)
  local says = time_of(value)
  return says and integer(math.max(0, math.ceil((says - now) / 1000))) or -1
end

-- Whether the holder writes fractions of a second.
local function writes_fractions()
  return string.find(redis.call('HGET', tail, 'until'), '.', 1, true)
end

-- Let `holder` hold the lock for `ttl` ms from now, but never for less than `value` says, if that is not
-- false: an earlier answer has promised it.
local function hold(holder, ttl, fractions, value)
  -- One second more, as old clients write it: their clocks may differ by as much.
  local ends = now + ttl * 1000 + 1000000
  local text = fractions and string.format('%.6f', ends / 1000000)
    or integer(math.floor(ends / 1000000))
  local stands = time_of(value)
  if stands and stands > time_of(text) then text = value end
  ends = time_of(text)
  redis.call('HSET', tail, 'holder', holder, 'until', text)
  redis.call('PEXPIRE', tail, outlives(ttl))
  enlist(ends / 1000)
  unlist_ended()
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked. The key has no
  -- TTL in the old algorithm; here it is removed when its time has long been over.
  redis.call('SET', lock, text, 'PX', integer((ends - now) / 1000 + MINUTE))
end
