-- The sign of life of waiters of one process that rest until they are woken, and a look whether they
-- still have their places.
--
-- KEYS     1 queue  2 waiters  (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          then the token of each waiter
-- Returns  the positions of the waiters that stand in the queue no more
-- Needs  clock, memory
-- luacheck: read globals now integer MINUTE

local queue, waiters = KEYS[1], KEYS[2]
local gone = {}
for i = 2, #ARGV do
  local says = redis.call('HGET', waiters, ARGV[i])
  if says and redis.call('ZSCORE', queue, ARGV[i]) then
    redis.call('HSET', waiters, ARGV[i], (string.gsub(says, '^%d+', integer(now), 1)))
  else
    gone[#gone + 1] = i - 1
  end
end
redis.call('PEXPIRE', queue, MINUTE)
redis.call('PEXPIRE', waiters, MINUTE)
return gone
