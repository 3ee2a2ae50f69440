-- How a lock is given back, for the release of one and of several; to be included after mutex.lua
-- and queue.lua.

-- Give back the lock of our token, or its place in the queue, and hand the lock to the next waiter.
-- `withdraw`: an acquire of this token may still be on its way, so leave a tombstone. Returns what
-- mutex_release.lua does, without the heirs.
local function give_back(withdraw)
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then value = NO_STRING end
  local held = holder(value) == token
  local why = (withdraw or not held) and redis.call('GET', gone)

  if held then
    -- include mutex_end.lua
    if not hand_over(grant) then
      unlist()
    end
  else
    leave_queue(token)
  end

  if withdraw and not why then
    redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
  end

  if held or redis.call('HGET', tail, 'released') == token then
    return {1}
  end
  return {0, value, why}
end
