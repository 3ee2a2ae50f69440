-- What is known of a lock's past.
--
-- KEYS     1 tail  2 lock  3 holders  (as in mutex.lua and permits.lua)
-- Returns  {last fencing token, for how long the last one held it, µs, the lock's value or nil,
--           those who held it, or hold it, in no order ...}; one "" where the tail is of another type

-- As in lock.lua.
local HOLDERS = 6

local tail, lock, holders = KEYS[1], KEYS[2], KEYS[3]
local value = redis.pcall('GET', lock)
-- What is at the key when it is of another type: no mutex, that much is certain.
if type(value) == 'table' then value = false end
local last = redis.pcall('HMGET', tail, 'fence', 'lasted')
if last.err then return {false, false, value, ''} end
local found = {last[1], last[2], value}
for field = 0, HOLDERS - 1 do
  local holder = redis.call('HGET', tail, field)
  if holder and holder ~= '' then found[#found + 1] = holder end
end
-- Of several who hold it, those whose leases have ended and whom nobody has entered yet.
local number = redis.pcall('HLEN', holders)
if type(number) == 'number' and number > 0 and number <= HOLDERS then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, record in ipairs(redis.call('HVALS', holders)) do
    local ends = redis.pcall('ZSCORE', lock, string.sub(record, 1, 32))
    local over = type(ends) == 'table' or not ends or tonumber(ends) <= now
    if over and string.sub(record, -7) ~= '|handed' then
      found[#found + 1] = string.match(record, '^[^\t]*')
    end
  end
end
return found
