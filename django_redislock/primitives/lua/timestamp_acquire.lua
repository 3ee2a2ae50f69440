-- Take the lock, if it is free or its time is over: what old clients do with SETNX, GET and GETSET,
-- in one step and by the server's clock. Idempotent: sent again with the same token, it finds the
-- lock its own and lets it live for another ttl.
--
-- KEYS     as in timestamp_keys.lua
-- ARGV     1 as in timestamp_keys.lua
--          2 ttl        ms
--          3 says       owner|label; the owner has no "|"
--          4 fractions  1: write fractions of a second, 0: whole ones
-- Returns  {1, acquired at µs}            we hold it
--          {0, holder, remains ms, now µs}  somebody else does; -1: without end
--          {-1, why}                      this token is gone for good
-- Needs  timestamp_keys, timestamp
-- luacheck: read globals now integer lock index gone token CLUSTER parts_of value_of token_of enlist time_of
-- luacheck: read globals holder_of remains hold

local ttl, says, fractions = ARGV[2], ARGV[3], ARGV[4]

-- A key of another type is an error at once.
local value = redis.call('GET', lock)
local holder = holder_of(value)

if holder and token_of(holder) ~= token then
  if not CLUSTER and not redis.call('ZSCORE', index, lock) then
    -- A list of the locks shows old clients, too, while we wait for them.
    enlist((time_of(value) or now) / 1000)
  end
  return {0, holder, remains(value), integer(now)}
end
if not holder then
  local why = redis.call('GET', gone)
  if why then return {-1, why} end
  holder = value_of(token, '|', '0', integer(now), ttl, says)
  value = false
end
hold(holder, ttl, fractions == '1', value)
local _, _, _, acquired_at = parts_of(holder)
return {1, acquired_at}
