-- Take the lock, if it is free or its time is over: what old clients do with SETNX, GET and GETSET,
-- in one step and by the server's clock. Idempotent: sent again with the same token, it finds the
-- lock its own and lets it live for another ttl.
--
-- KEYS     1 lock  2 tail  3 index  4 gone  (as in timestamp.lua)
-- ARGV     1 token      32 characters
--          2 name       the member of the index
--          3 ttl        ms
--          4 owner      without "|"
--          5 label
--          6 fractions  1: write fractions of a second, 0: whole ones
-- Returns  {1, acquired at µs}            we hold it
--          {0, holder, remains ms, now µs}  somebody else does; -1: for ever
--          {-1, why}                      this token is gone for ever

-- include timestamp.lua

local lock, tail, index, gone = unpack(KEYS)
index = index ~= lock and index
local token, name, ttl, owner, label, fractions = unpack(ARGV)

-- A key of another type is an error at once.
local value = redis.call('GET', lock)
local holder = holder_of(tail, value)

if holder and token_of(holder) ~= token then
  if index and not redis.call('ZSCORE', index, name) then
    -- Who asks for the locks sees old clients, too, while ours wait for them.
    redis.call('ZADD', index, integer((time_of(value) or now) / 1000), name)
  end
  return {0, holder, remains(value), integer(now)}
end
if not holder then
  local why = redis.call('GET', gone)
  if why then return {-1, why} end
  holder = table.concat({token, 0, integer(now), ttl, owner, label}, '|')
  value = false
end
hold(lock, tail, index, name, holder, ttl, fractions == '1', value)
return {1, string.match(holder, '^[^|]*|0|(%d+)')}
