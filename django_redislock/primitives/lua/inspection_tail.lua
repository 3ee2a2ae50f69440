-- The known past of a lock.
--
-- KEYS     1 tail  2 lock  3 holders  (as in mutex_grant.lua and permits.lua)
-- Returns  {last fencing token, how long the last holder held it, µs, the lock's value or nil,
--           the past holders, or the present ones, in no order ...}; one "" if the tail is of another
--          type
-- luacheck: read globals now PAST_HOLDERS

local tail, lock, holders = KEYS[1], KEYS[2], KEYS[3]
local value = redis.pcall('GET', lock)
if type(value) == 'table' then value = false end  -- a key of another type is no mutex
local last = redis.pcall('HMGET', tail, 'fence', 'lasted')
if last.err then return {false, false, value, ''} end
local found = {last[1], last[2], value}
for field = 0, PAST_HOLDERS - 1 do
  local holder = redis.call('HGET', tail, field)
  if holder and holder ~= '' then found[#found + 1] = holder end
end
-- Holders of a lock that several may hold: leases that have ended, and that are not in the tail yet.
local number = redis.pcall('HLEN', holders)
if type(number) == 'number' and number > 0 and number <= PAST_HOLDERS then
  for _, record in ipairs(redis.call('HVALS', holders)) do
    local ends = redis.pcall('ZSCORE', lock, string.sub(record, 1, 32))
    local over = type(ends) == 'table' or not ends or tonumber(ends) <= math.floor(now / 1000)
    if over and string.sub(record, -7) ~= '|handed' then
      found[#found + 1] = string.match(record, '^[^\t]*')
    end
  end
end
return found
