-- What the scripts of the TimestampLock share; each of them includes this file.
--
-- KEYS  as in lock.lua, of which here nobody stands in a queue, and
--       1 lock  string  when the lock ends, in seconds since the epoch: all that old clients know
--       4 tail  hash    what only we know: who of ours took it last ("holder", as the value of a
--                       mutex, with 0 for the fencing token), and what it wrote at the key ("until");
--                       "released", the token that was released last; for how long it "lasted", µs
-- ARGV  1, 2 as in lock.lua

-- include lock.lua
-- include index.lua

-- The loser of a GETSET moves the time that the winner has written by about the time between
-- the two commands, and by the difference of their clocks; whole seconds add one. In µs.
local A_LITTLE = 2000000
-- What is at the key when it is of another type: not ours, that much is certain.
local NO_STRING = 'no string'

-- The time that a value says, in µs; nil when it is none of this century: then it was not
-- written by this algorithm, and who knows what it means?
local function time_of(value)
  local seconds = value and string.match(value, '^%d+%.?%d*$') and tonumber(value)
  return seconds and seconds > 946684800 and seconds < 4102444800 and seconds * 1000000
end

-- The value at the key, also where it is none that we understand.
local function look()
  local value = redis.pcall('GET', lock)
  return type(value) == 'table' and NO_STRING or value
end

-- The one of ours that holds a lock of this value, as it is written in the tail; or nil. Its time
-- is not over, and the key says that time, or what the loser of a GETSET has made of it.
local function ours(value)
  local holder, wrote = unpack(redis.call('HMGET', tail, 'holder', 'until'))
  local ends, says = time_of(wrote), time_of(value)
  if holder and ends and says and now <= ends and math.abs(says - ends) <= A_LITTLE then
    return holder
  end
end

local function token_of(holder)
  return holder and string.sub(holder, 1, 32)
end

-- Who holds a lock of this value: one of ours, as it is written in the tail; of others, the value,
-- which is all that is known of them; or false: it is free, or its time is over.
local function holder_of(value)
  local says = time_of(value)
  return ours(value) or not (says and says < now) and value or false
end

-- For so long a lock of this value is held, in ms; -1: for ever.
local function remains(value)
  local says = time_of(value)
  return says and integer(math.max(0, math.ceil((says - now) / 1000))) or -1
end

-- Whether fractions of a second are written, as whoever took the lock has said.
local function writes_fractions()
  return string.find(redis.call('HGET', tail, 'until'), '.', 1, true)
end

-- Let `holder` hold the lock for `ttl` ms from now. Never less than `value` says, if that is not
-- false: what an earlier answer has promised stands.
local function hold(holder, ttl, fractions, value)
  -- One second more, as the old clients have it: their clocks may differ by as much.
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
  -- TTL in the old algorithm; here it is removed when it has long said nothing any more.
  redis.call('SET', lock, text, 'PX', integer((ends - now) / 1000 + MINUTE))
end
