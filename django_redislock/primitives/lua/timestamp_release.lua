-- Release the lock. Nothing is deleted if its time is over, or if another client has written another
-- time. Idempotent: sent again, it finds its token in the tail.
--
-- KEYS     as in timestamp.lua
-- ARGV     1, 2 as in lock.lua
--          3 withdraw  1 when an acquire of this token may still be on its way: it leaves
--                      a tombstone, so that a late acquire is refused. Else 0.
-- Returns  {1}                  released, now or before
--          {0, holder, gone}    not held: its holder, why our token may not have it
-- luacheck: read globals now integer lock tail gone token VALUE token_of look MINUTE unlist holder_of

local withdraw = ARGV[3] == '1'

local value = look(lock)
local holder = holder_of(value)
local held = holder and token_of(holder) == token
local why = (withdraw or not held) and redis.call('GET', gone)

if held then
  local _, _, acquired_at = string.match(holder, VALUE)
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('DEL', lock)
  redis.call('HDEL', tail, 'holder', 'until')
  redis.call('HSET', tail, 'released', token, 'lasted', integer(now - acquired_at))
  redis.call('PEXPIRE', tail, MINUTE)
  unlist()
end
if withdraw and not why then
  redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
end
if held or redis.call('HGET', tail, 'released') == token then
  return {1}
end
return {0, holder, why}
