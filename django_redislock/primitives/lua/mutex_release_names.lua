-- Part: the release of a mutex.
--
-- KEYS   as in locks.lua
-- Gives  release_names(late)  do and return what mutex_release.lua says
-- Needs  mutex_grant, needs, withdraw
-- luacheck: read globals now integer lock gone token look token_of mark_of unlist write_end grant withdraw
-- luacheck: read globals hand_over leave_queue granted LOCKS turn_to
-- luacheck: globals busy

local function release_name(i, late)
  turn_to(i)
  local value = look(lock)
  local held = token_of(value) == token
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
  local why = withdraw(late, held)
  return not held and {0, value, why, i}
end

local function release_names(late)
  local answer, failure = {1}, nil
  for i = 1, LOCKS do
    local ok, reply = pcall(release_name, i, late)
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
