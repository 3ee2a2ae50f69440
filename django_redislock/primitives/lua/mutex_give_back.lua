-- Part: the release of one mutex or several.
--
-- KEYS   as in mutex_grant.lua
-- Gives  give_back(withdraw)
--          release the lock of our token, or its place in the queue, and hand the lock to the next
--          waiter. `withdraw`: an acquire of this token may still be on its way, so leave a
--          tombstone. Returns what mutex_release.lua does, without `granted`
-- luacheck: read globals lock gone token look token_of mark_of MINUTE unlist write_end grant hand_over
-- luacheck: read globals leave_queue

local function give_back(withdraw)
  local value = look(lock)
  local held = token_of(value) == token
  local why = (withdraw or not held) and redis.call('GET', gone)

  if held then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('DEL', lock)
    if mark_of(value) == '+' then write_end(value, 'released') end
    if not hand_over(grant) and mark_of(value) ~= '|' then unlist() end
  else
    leave_queue(token)
  end

  if withdraw and not why then
    redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
  end
  if held then return {1} end
  return {0, value, why}
end
