-- Reinstate leases that this server has forgotten, with their own fencing tokens. That is possible as long
-- as nobody new can have got these locks. Idempotent: sent again, it finds them and extends them.
--
-- KEYS     for each lease: lock, gone; then guard, index, clock (as in guard.lua and lock.lua)
-- ARGV     1 the word that the answer begins with
--          2 withdrawn  1: even if the token was withdrawn, since it is released next
--          then for each lease: its value, as in value.lua; how long it lives from now, ms; when it
--          ends if nobody reinstates it, µs: after that others may have held the lock
-- Returns  {1 if any is held now else 0, and for each one that is not:
--          {position, value, gone}  which one it is, who holds it, why we don't}
-- Needs  value, fence_lost, guard
-- luacheck: read globals now millis integer parts_of token_of look pause remember_fence

local guard, index, clock = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local withdrawn = ARGV[2] == '1' and 'withdrawn'
local reply, scores, newest = {0}, {}, 0
for i = 1, (#KEYS - 3) / 2 do
  local lock, value, lives = KEYS[2 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  local there, why = look(lock), redis.call('GET', KEYS[2 * i])
  local token, _, fence, _, ttl = parts_of(value)
  if token_of(there) == token then
    if redis.call('PTTL', lock) < lives then redis.call('PEXPIRE', lock, lives) end
    reply[1] = 1
  elseif there or (why and why ~= withdrawn) or now >= tonumber(ARGV[3 * i + 2])
    or not pause(guard, tonumber(ttl)) then
    reply[#reply + 1] = {i, there, why}
  else
    redis.call('SET', lock, value, 'PX', lives)
    scores[#scores + 1] = integer(millis + lives)
    scores[#scores + 1] = lock
    newest = math.max(newest, tonumber(fence))
    reply[1] = 1
  end
end
if scores[1] then
  redis.call('ZADD', index, unpack(scores))
  remember_fence(clock, newest)
end
return reply
