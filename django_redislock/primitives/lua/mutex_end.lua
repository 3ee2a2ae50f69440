-- End the hold of our token, with the `value` that it has at the key. As mutex_grant.lua no function.
local fencing_token, acquired_at = string.match(value, '^[^|]*|(%d+)|(%d+)')
-- First, since a full Redis denies other writes, but not after one that it has allowed.
redis.call('DEL', lock)
local lasted = string.format('%.0f', now - acquired_at)
redis.call('HSET', tail, 'released', token, 'fence', fencing_token, 'lasted', lasted,
  fencing_token % HOLDERS, value .. '\treleased|' .. lasted)
redis.call('PEXPIRE', tail, remembers(0, fencing_token))
