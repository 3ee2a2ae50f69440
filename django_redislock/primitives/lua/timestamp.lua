-- Part: the TimestampLock.
--
-- Gives  time_of, ours, holder_of, remains, writes_fractions, hold
-- Needs  index
-- luacheck: read globals now integer lock beside MINUTE VALUE enlist unlist_ended

-- The loser of a GETSET moves the time that the winner has written by about the time between
-- the two commands, and by the difference of their clocks; whole seconds add one. In µs.
local A_LITTLE = 2000000

-- The time that a value says, in µs; nil if it is no time of this century: then this algorithm has not
-- written it, and nobody knows what it means.
local function time_of(value)
  local seconds = value and string.match(value, '^%d+%.?%d*$') and tonumber(value)
  return seconds and seconds > 946684800 and seconds < 4102444800 and seconds * 1000000
end

-- The holder beside the lock, if it holds a lock of this value; or nil. Its time is not over, and the key
-- says that time, or the time that the loser of a GETSET has made of it.
local function ours(value)
  local holder, wrote = unpack(redis.call('HMGET', beside, 'holder', 'until'))
  local ends, says = time_of(wrote), time_of(value)
  if holder and string.find(holder, VALUE) and ends and says and now <= ends
    and math.abs(says - ends) <= A_LITTLE then
    return holder
  end
end

-- Who holds a lock of this value: the holder beside it; or an old client, of which only the value is
-- known; or false: it is free, or its time is over.
local function holder_of(value)
  local says = time_of(value)
  return ours(value) or not (says and says < now) and value or false
end

-- For how long a lock of this value is still held, in ms; -1: without end.
local function remains(value)
  local says = time_of(value)
  return says and integer(math.max(0, math.ceil((says - now) / 1000))) or -1
end

-- Whether the holder writes fractions of a second.
local function writes_fractions()
  return string.find(redis.call('HGET', beside, 'until'), '.', 1, true)
end

-- Let `holder` hold the lock for `ttl` ms from now, but never less than `value` says, if that is not false:
-- what an earlier answer has promised stands.
local function hold(holder, ttl, fractions, value)
  -- One second more, as the old clients have it: their clocks may differ by as much.
  local ends = now + ttl * 1000 + 1000000
  local text = fractions and string.format('%.6f', ends / 1000000)
    or integer(math.floor(ends / 1000000))
  local stands = time_of(value)
  if stands and stands > time_of(text) then text = value end
  ends = time_of(text)
  -- Both keys are removed when the time of the lock has long been over.
  local lives = integer((ends - now) / 1000 + MINUTE)
  redis.call('HSET', beside, 'holder', holder, 'until', text)
  redis.call('PEXPIRE', beside, lives)
  enlist(ends / 1000)
  unlist_ended()
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked. The key has no
  -- TTL in the old algorithm.
  redis.call('SET', lock, text, 'PX', lives)
end
