-- The entries that this package wrote beside the keys of timestamp locks.
--
-- KEYS     for each lock: beside  (as in timestamp_keys.lua)
-- ARGV     1 the word that the answer begins with
-- Returns  {{holder, until}, ...}

local found = {}
for i, beside in ipairs(KEYS) do
  found[i] = redis.pcall('HMGET', beside, 'holder', 'until')
  -- The key is of another type.
  if found[i].err then found[i] = {false, false} end
end
return found
