-- Part: the keys of a lock of the index, in which something may be wrong.
--
-- Gives  keys_of(lock)  these keys, in the order of broken.lua

local function keys_of(lock)
  local keys = {lock}
  for i, name in ipairs({'queue', 'waiters', 'holders', 'record', 'timestamp', 'ledger', 'note'}) do
    keys[i + 1] = lock .. ':' .. name
  end
  return keys
end
