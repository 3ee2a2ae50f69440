-- Part: keys of a lock that have another type than its scripts give them.
--
-- Gives  broken(its, index)  these keys, in a list. `its` are the lock, its queue, waiters, holders, record,
--                            timestamp, ledger and note (Keys.looked_at). Not its history: the scripts
--                            delete one of another type (history.lua)

local function broken(its, index)
  local lock, queue, found = its[1], its[2], {}
  local function look_at(key, answer)
    local failed = type(answer) == 'table' and tostring(answer.err)
    if failed and string.find(failed, 'WRONGTYPE') then found[#found + 1] = key end
  end
  local value = redis.pcall('GETRANGE', lock, 0, 0)
  if type(value) == 'table' then look_at(lock, redis.pcall('ZCARD', lock)) end
  if index ~= lock then look_at(index, redis.pcall('ZCARD', index)) end  -- else it is a cluster
  look_at(queue, redis.pcall('ZCARD', queue))
  for _, text in ipairs({its[5], its[8]}) do look_at(text, redis.pcall('GETRANGE', text, 0, 0)) end
  for _, hash in ipairs({its[3], its[4], its[6], its[7]}) do look_at(hash, redis.pcall('HLEN', hash)) end
  return found
end
