-- Write down leases that have been held for a while: in the index, for lists, and in the history, for whoever
-- asks later. A lease that is not ours is left alone.
--
-- KEYS     for each lease: lock, history; then index (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          then for each lease its token
-- Returns  how many were written down
-- Needs  leases_keys, index, history
-- luacheck: globals lock history
-- luacheck: read globals millis integer index look token_of mark_of CLUSTER write_down unlist_ended

unlist_ended() -- first: an index of a wrong type ends the script before a mark says that the lock is listed
local scores = {}
for i = 1, #ARGV - 1 do
  lock, history = KEYS[2 * i - 1], KEYS[2 * i]
  local value = look(lock)
  if token_of(value) == ARGV[i + 1] and mark_of(value) ~= '?' then
    if mark_of(value) == '|' then redis.call('SETRANGE', lock, 32, '+') end
    write_down(value)
    scores[#scores + 1] = integer(millis + math.max(0, redis.call('PTTL', lock)))
    scores[#scores + 1] = lock
  end
end
if scores[1] and not CLUSTER then redis.call('ZADD', index, unpack(scores)) end
return #scores / 2
