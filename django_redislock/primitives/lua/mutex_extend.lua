-- Let many leases live for another ttl from now.
--
-- KEYS     as in extend.lua: for each lease its lock
-- ARGV     1 the word that the answer begins with
--          then as in extend.lua
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, who holds it, why we don't}
-- Needs  extend
-- luacheck: read globals integer look with_ttl extend_all

local function look_at(token, lock)
  local value = look(lock)
  if value and string.sub(value, 1, 32) == token then return value end
  return nil, value
end

local function extend(value, left, lives, store, _, lock)
  if left >= lives and not store then return end
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  redis.call('PEXPIRE', lock, lives)
  if store then redis.call('SET', lock, with_ttl(value, integer(lives)), 'PX', math.max(left, lives)) end
end

return extend_all(1, look_at, extend)
