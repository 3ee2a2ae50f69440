-- Give back the lock. Nothing is deleted when its time is over, or when somebody else has written
-- another one. Repeated, it changes nothing.
--
-- KEYS     as in timestamp_keys.lua
-- ARGV     1 as in timestamp_keys.lua
--          2 late  1 when an acquire of this token may still be on its way, as in withdraw.lua. Else 0.
-- Returns  {1}                  released
--          {0, holder, gone}    not held: who holds it now, what was written of our token
-- Needs  timestamp_keys, history, timestamp, withdraw
-- luacheck: read globals lock beside token token_of look unlist holder_of write_end withdraw

local value = look(lock)
local holder = holder_of(value)
local held = holder and token_of(holder) == token

if held then
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('DEL', lock, beside)
  write_end(holder, 'released')
  unlist()
end
local why = withdraw(ARGV[2] == '1', held)
if held then
  return {1}
end
return {0, holder, why}
