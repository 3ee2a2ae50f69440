-- Let many leases live for another ttl from now: old clients see a later time. The value at the key says
-- whether fractions of a second are written. A lease that is not ours is not touched.
--
-- KEYS     for each lease: as in timestamp_keys.lua
-- ARGV     1 the word that the answer begins with
--          then for each lease: token, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, holder, gone}  which one it is, who holds it, why we don't}
-- Needs  timestamp_keys, timestamp
-- luacheck: globals lock beside gone token
-- luacheck: read globals look token_of with_ttl outlives holder_of writes_fractions hold

local reply = {0}
for i = 1, #KEYS / 5 do
  lock, beside, gone = KEYS[5 * i - 4], KEYS[5 * i - 3], KEYS[5 * i]
  token = ARGV[2 * i]
  local ttl = ARGV[2 * i + 1]
  local value = look(lock)
  local holder = holder_of(value)
  if holder and token_of(holder) == token then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('PEXPIRE', beside, outlives(ttl))
    hold(with_ttl(holder, ttl), ttl, writes_fractions(), value)
    reply[1] = 1
  else
    reply[#reply + 1] = {i, holder, redis.call('GET', gone)}
  end
end
return reply
