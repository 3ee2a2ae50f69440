-- Let many leases live for another ttl from now: old clients see a later time. The value at the key says
-- whether fractions of a second are written. The lock of another token is not touched.
--
-- KEYS     for each lease: as in timestamp.lua
-- ARGV     for each lease: token, name, ttl in ms
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, holder, gone}  its position, its holder, why the token may not have it}
-- luacheck: globals lock tail gone token name
-- luacheck: read globals look token_of with_ttl outlives holder_of writes_fractions hold

local reply = {0}
for i = 1, #ARGV / 3 do
  lock, tail, gone = KEYS[6 * i - 5], KEYS[6 * i - 2], KEYS[6 * i]
  token, name = ARGV[3 * i - 2], ARGV[3 * i - 1]
  local ttl = ARGV[3 * i]
  local value = look(lock)
  local holder = holder_of(value)
  if holder and token_of(holder) == token then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('PEXPIRE', tail, outlives(ttl))
    hold(with_ttl(holder, ttl), ttl, writes_fractions(), value)
    reply[1] = 1
  else
    reply[#reply + 1] = {i, holder, redis.call('GET', gone)}
  end
end
return reply
