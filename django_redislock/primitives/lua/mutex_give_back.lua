-- Part: the release of one mutex or several.
--
-- KEYS   as in mutex_grant.lua
-- Gives  give_back(withdraw)
--          release the lock of our token, or its place in the queue, and hand the lock to the next
--          waiter. `withdraw`: an acquire of this token may still be on its way, so leave a
--          tombstone. Returns what mutex_release.lua does, without `granted`
-- luacheck: read globals lock tail gone token look token_of MINUTE unlist end_hold grant hand_over
-- luacheck: read globals leave_queue

local function give_back(withdraw)
  local value = look(lock)
  local held = token_of(value) == token
  local why = (withdraw or not held) and redis.call('GET', gone)

  if held then
    end_hold(value)
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
