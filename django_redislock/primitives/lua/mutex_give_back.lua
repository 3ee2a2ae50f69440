-- Part: the release of a mutex.
--
-- KEYS   as in locks.lua
-- Gives  give_back(withdraw)  do and return what mutex_release.lua says
-- Needs  mutex_grant, needs
-- luacheck: read globals now integer lock gone token look token_of mark_of MINUTE unlist write_end grant
-- luacheck: read globals hand_over leave_queue granted LOCKS turn_to
-- luacheck: globals busy

local function give_back_one(i, withdraw)
  turn_to(i)
  local value = look(lock)
  local held = token_of(value) == token
  local why = (withdraw or not held) and redis.call('GET', gone)
  if held then
    -- First, since a full Redis denies other writes, but not after one that it has allowed.
    redis.call('DEL', lock)
    if mark_of(value) == '+' then write_end(value, 'released') end
    if hand_over(grant) then
      busy[lock] = i
    elseif mark_of(value) ~= '|' then
      unlist()
    end
  else
    leave_queue(token)
    if value then busy[lock] = i end
  end
  if withdraw and not why then
    redis.call('SET', gone, 'withdrawn', 'PX', MINUTE)
  end
  return not held and {0, value, why, i}
end

local function give_back(withdraw)
  local answer, failure = {1}, nil
  for i = 1, LOCKS do
    local ok, reply = pcall(give_back_one, i, withdraw)
    if not ok then
      failure = reply
    elseif reply and answer[1] == 1 then
      answer = reply
    end
  end
  -- A key of another type beside one of the locks keeps none of the others.
  if failure then error(failure, 0) end
  if answer[1] == 1 and granted[1] then return {1, integer(now), granted} end
  return answer
end
