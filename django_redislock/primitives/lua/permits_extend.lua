-- Let many leases live for another ttl from now.
--
-- KEYS     as in extend.lua: for each lease its lock and holders (as in permits.lua)
-- ARGV     1 the word that the answer begins with
--          then as in extend.lua
-- Returns  {1 if any was extended else 0, and for each one that is not held:
--          {position, value, gone}  which one it is, what is at the key if that is not ours, why
--                                   we don't hold it}
-- Needs  memory, extend
-- luacheck: read globals millis integer with_ttl MINUTE extend_all

local NO_ZSET = 'no sorted set'

-- When the lease ends that is looked at, ms.
local ends

local function look_at(token, lock, holders)
  ends = redis.pcall('ZSCORE', lock, token)
  if type(ends) == 'table' then return nil, NO_ZSET end
  ends = tonumber(ends or 0)
  return ends > millis and redis.call('HGET', holders, token) or nil, false
end

local function extend(value, left, lives, store, token, lock, holders)
  -- First, since a full Redis denies other writes, but not after one that it has allowed.
  if left < lives then
    redis.call('PEXPIRE', lock, lives)
    redis.call('PEXPIRE', holders, lives + MINUTE)
  end
  if ends < millis + lives then redis.call('ZADD', lock, integer(millis + lives), token) end
  if store then redis.call('HSET', holders, token, with_ttl(value, integer(lives))) end
end

return extend_all(2, look_at, extend)
