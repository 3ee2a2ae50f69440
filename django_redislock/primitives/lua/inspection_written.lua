-- What ours have written beside the keys of timestamp locks.
--
-- KEYS     tails  (as in timestamp.lua)
-- Returns  {{holder, until}, ...}

local found = {}
for i, tail in ipairs(KEYS) do
  found[i] = redis.pcall('HMGET', tail, 'holder', 'until')
  -- Something else is at the key.
  if found[i].err then found[i] = {false, false} end
end
return found
