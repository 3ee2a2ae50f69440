-- Remove a lock without its token, for an operator. A holder of this package learns the reason at its
-- next renewal; an old client learns nothing.
--
-- KEYS     as in timestamp_keys.lua; 5 is for the token that the operator saw
-- ARGV     1 the word that the answer begins with
--          2 by      without "|"
--          3 reason
--          4 seen    the token of the holder that the operator saw, or the whole of an old client's value
-- Returns  1 cleared, 0 it changed hands or was free already
-- Needs  timestamp_keys, timestamp, clear
-- luacheck: read globals lock beside gone token_of unlist ours tell_cleared

local seen = ARGV[4]

local value = redis.call('GET', lock)
local holder = value and value ~= seen and ours(value)
if value ~= seen and token_of(holder) ~= seen then return 0 end
redis.call('DEL', lock)
unlist()
if holder then
  redis.call('HDEL', beside, 'holder', 'until')
  tell_cleared(gone, holder)
end
return 1
