-- What is known of a lock's past.
--
-- KEYS     1 tail  2 lock  (as in mutex.lua)
-- Returns  {last fencing token, for how long the last one held it, µs, the lock's value or nil,
--           those who held it, or hold it, in no order ...}

-- As in mutex.lua.
local HOLDERS = 6

local value = redis.pcall('GET', KEYS[2])
-- What is at the key when it is of another type: not ours, that much is certain.
if type(value) == 'table' then value = false end
local found = {redis.call('HGET', KEYS[1], 'fence'), redis.call('HGET', KEYS[1], 'lasted'), value}
for field = 0, HOLDERS - 1 do
  local holder = redis.call('HGET', KEYS[1], field)
  if holder and holder ~= '' then found[#found + 1] = holder end
end
return found
