-- Part: keys of a lock that have another type than its scripts give them.
--
-- Gives  broken(lock, queue, index)  these keys, in a list. Without a history: the scripts delete one of
--                                    another type (history.lua)

local function broken(lock, queue, index)
  local beside, found = string.sub(queue, 1, -6), {}
  local function look_at(key, answer)
    if type(answer) == 'table' and string.find(answer.err, 'WRONGTYPE') then found[#found + 1] = key end
  end
  local value = redis.pcall('GETRANGE', lock, 0, 0)
  if type(value) == 'table' then look_at(lock, redis.pcall('ZCARD', lock)) end
  if index ~= lock then look_at(index, redis.pcall('ZCARD', index)) end  -- else it is a cluster
  look_at(queue, redis.pcall('ZCARD', queue))
  look_at(beside .. 'record', redis.pcall('GETRANGE', beside .. 'record', 0, 0))
  for _, hash in ipairs({'waiters', 'holders', 'timestamp', 'ledger'}) do
    look_at(beside .. hash, redis.pcall('HLEN', beside .. hash))
  end
  return found
end
