-- Give back the lock. Nothing is deleted when its time is over, or when somebody else has written
-- another one. Repeated, it changes nothing.
--
-- KEYS     as in timestamp_keys.lua
-- ARGV     1 as in timestamp_keys.lua
--          2 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that the late one is refused. Else 0.
-- Returns  {1}                  released
--          {0, holder, gone}    not held: who holds it now, what was written of our token
-- Needs  timestamp_keys, history, timestamp
-- luacheck: read globals lock beside gone token token_of look MINUTE unlist holder_of write_end

local withdraw = ARGV[2] == '1'

local value = look(lock)
local holder = holder_of(value)
local held = holder and token_of(holder) == token
local why = (withdraw or not held) and redis.call('GET', gone)

if held then
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('DEL', lock, beside)
  write_end(holder, 'released')
  unlist()
end
if withdraw and not why then
  redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
end
if held then
  return {1}
end
return {0, holder, why}
