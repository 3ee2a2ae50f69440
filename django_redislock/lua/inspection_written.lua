-- What ours have written beside the keys of timestamp locks.
--
-- KEYS     tails  (as in timestamp.lua)
-- Returns  {{holder, until}, ...}

local found = {}
for i, tail in ipairs(KEYS) do
  found[i] = redis.call('HMGET', tail, 'holder', 'until')
end
return found
