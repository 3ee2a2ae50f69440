-- Part: how the holder of a mutex ends its hold.
--
-- KEYS   as in mutex_grant.lua
-- Gives  end_hold(value)  end the hold of our token, which has `value` at the key
-- luacheck: read globals now integer lock tail token PAST_HOLDERS remembers VALUE

local function end_hold(value)
  local _, fencing_token, acquired_at = string.match(value, VALUE)
  local lasted = integer(now - acquired_at)
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('DEL', lock)
  redis.call('HSET', tail, 'released', token, 'fence', fencing_token, 'lasted', lasted,
    fencing_token % PAST_HOLDERS, value .. '\treleased|' .. lasted)
  redis.call('PEXPIRE', tail, remembers(0, fencing_token))
end
