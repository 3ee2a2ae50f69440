-- Remove a lock without its token, for an operator. The holder is told why at its next
-- renewal; the next waiter gets the lock, or whoever steals it.
--
-- KEYS     as in locks.lua; 5 is for the token of the holder that the operator saw
-- ARGV     1 the word that the answer begins with
--          2 by      without "|"
--          3 reason
--          4 seen    the token of the holder that the operator saw, or the whole of a foreign value
--          5 thief   the token that has the lock then; missing: the next waiter has it
--          6 ttl     ms
--          7 says    owner|label
-- Returns  1 cleared, 0 it changed hands or was free already
-- Needs  locks, mutex_grant, queue, clear
-- luacheck: read globals lock gone token_of parts_of unlist grant hand_over tell_cleared

local seen = ARGV[4]

local value = redis.call('GET', lock)
if not value or value ~= seen and not (parts_of(value) and token_of(value) == seen) then return 0 end
redis.call('DEL', lock)
tell_cleared(gone, value)
if ARGV[5] then
  grant(ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[6]), ARGV[7], '+')
elseif not hand_over(grant) then
  unlist()
end
return 1
