-- The entries that this package wrote beside the keys of timestamp locks.
--
-- KEYS     tails  (as in timestamp.lua)
-- Returns  {{holder, until}, ...}

local found = {}
for i, tail in ipairs(KEYS) do
  found[i] = redis.pcall('HMGET', tail, 'holder', 'until')
  -- The key is of another type.
  if found[i].err then found[i] = {false, false} end
end
return found
