-- Part: the value that describes one holder. A mutex has it at the key of the lock, a timestamp lock
-- beside it, a semaphore or a read-write lock in the hash of its holders:
--
--   token, mark, fencing token|acquired at, µs|ttl, ms|owner|label
--
-- The mark is one character. A release looks at it, and does no more than it has to:
--   |  nothing else is written down of this holder, and nobody waits for a mutex that it holds
--   +  the index has the lock, and the history may have the holder
--   ?  the lock was handed to a waiter, which has not confirmed it yet; the index has the lock
--
-- The time of acquiring is empty if it is the same number as the fencing token, as it mostly is.
--
-- Gives  VALUE        its pattern
--        parts_of(v)  token, mark, fencing token, time of acquiring, ttl, and owner|label of a value; nil
--                     if it is not ours
--        value_of(token, mark, fence, acquired_at, ttl, says)  the value of these parts
--        NO_STRING    stands for the value of a key of another type, which is certainly not ours
--        token_of(v)  the token of a value; nil or false stay as they are
--        mark_of(v)   its mark
--        marked(v, mark)  the same value with another mark
--        look(key)    the value at a key, or NO_STRING
--        with_ttl(v, ttl)  the same value with another ttl

local VALUE = '^(%w*)([|+?])(%d+)|(%d*)|(%d+)|(.*)$'
local NO_STRING = 'no string'

local function parts_of(value)
  local its_token, mark, fence, acquired_at, ttl, says = string.match(value, VALUE)
  if not ttl or #fence > 16 or #ttl > 14 then return end  -- no script writes longer numbers
  if acquired_at == '' then acquired_at = fence end
  return its_token, mark, fence, acquired_at, ttl, says
end

local function value_of(its_token, mark, fence, acquired_at, ttl, says)
  if acquired_at == fence then acquired_at = '' end
  return its_token .. mark .. table.concat({fence, acquired_at, ttl, says}, '|')
end

-- The token comes first and has a fixed length, so no foreign value looks like ours by accident.
local function token_of(value)
  return value and string.sub(value, 1, 32)
end

local function mark_of(value)
  return string.sub(value, 33, 33)
end

local function marked(value, mark)
  return string.sub(value, 1, 32) .. mark .. string.sub(value, 34)
end

local function look(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'table' and NO_STRING or value
end

local function with_ttl(value, ttl)
  local its_token, mark, fence, acquired_at, _, says = parts_of(value)
  if not its_token then return value end
  return value_of(its_token, mark, fence, acquired_at, ttl, says)
end
