-- Part: the value that describes one holder. A mutex has it at the key of the lock, a timestamp lock
-- in its tail, a semaphore or a read-write lock in the hash of its holders:
--
--   token|fencing token|acquired at, µs|ttl, ms|owner|label
--
-- Gives  VALUE        its pattern; the captures are: everything before the ttl, the fencing token, the
--                     time of acquiring, the ttl, and everything behind the ttl
--        NO_STRING    stands for the value of a key of another type, which has no token
--        token_of(v)  the token of a value; nil or false stay as they are
--        look(key)    the value at a key, or NO_STRING
--        with_ttl(v, ttl)  the same value with another ttl

local VALUE = '^([^|]*|(%d+)|(%d+)|)(%d+)(|.*)$'
local NO_STRING = 'no string'

-- The token comes first and has a fixed length, so no foreign value looks like one by accident.
local function token_of(value)
  return value and string.sub(value, 1, 32)
end

local function look(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'table' and NO_STRING or value
end

local function with_ttl(value, ttl)
  local before, _, _, _, after = string.match(value, VALUE)
  return before .. ttl .. after
end
