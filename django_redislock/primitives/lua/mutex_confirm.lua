-- Part: an acquire that finds that its token has the lock.
--
-- KEYS   as in mutex_grant.lua
-- Gives  confirm(value, ttl)  let our token hold the lock, which has `value` at the key, for `ttl` ms
--                             from now. Returns the fencing token, and the time of acquiring, µs
-- Needs  index
-- luacheck: read globals now lock parts_of enlist

local function confirm(value, ttl)
  local _, mark, fence, acquired_at = parts_of(value)
  -- Unless it was just handed to us, it never gets less than it has: an early send may arrive late,
  -- after an extension. PEXPIRE comes first, since a full Redis denies SETRANGE, but not after a write
  -- that it has allowed.
  if mark == '?' or redis.call('PTTL', lock) < ttl then
    redis.call('PEXPIRE', lock, ttl)
    if mark ~= '|' then enlist(now / 1000 + ttl) end
  end
  if mark == '?' then redis.call('SETRANGE', lock, 32, '+') end
  return fence, acquired_at
end
