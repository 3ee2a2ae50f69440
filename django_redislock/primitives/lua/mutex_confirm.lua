-- Part: an acquire that finds that its token has the lock.
--
-- KEYS   as in mutex_grant.lua
-- Gives  confirm(value, ttl)  let our token hold the lock, which has `value` at the key, for `ttl` ms
--                             from now. Returns the fencing token and the time of acquiring, µs
-- luacheck: read globals now lock tail token PAST_HOLDERS VALUE enlist

local function confirm(value, ttl)
  local handed = redis.call('HGET', tail, 'handed') == token
  -- Unless it was just handed to us, it never gets less than it has: an early send may arrive late,
  -- after an extension. PEXPIRE comes first, since a full Redis denies HSET, but not after a write
  -- that it has allowed.
  if handed or redis.call('PTTL', lock) < ttl then
    redis.call('PEXPIRE', lock, ttl)
    enlist(now / 1000 + ttl)
  end
  local _, fencing_token, acquired_at = string.match(value, VALUE)
  if handed then
    redis.call('HSET', tail, 'handed', '', fencing_token % PAST_HOLDERS, value)
  end
  return fencing_token, acquired_at
end
