-- Part: how the tasks of one name look, for operators. Nothing is written.
--
-- Gives  seen(name, most, lines)  {name, {id, says, at µs, due µs or nil, pttl ms, 1 if it is parked or
--          promoted, else 0} of the one with the claim or nil, how many are parked, {{id, since µs or ""}
--          of so many lines of them, ...}, {{id, since, until µs} promoted, ...}, {{id, weight, record, ms
--          that its lease lasts} running, ...}, lapsed: how many have to be healed, how many of these are
--          sent again then}
-- luacheck: read globals now integer millis holders ends_of claim parked sent messages since all_runs

local function seen(name, most, lines)
  local waiting = false
  local id, says, queued, due = unpack(redis.call('HMGET', claim, 'id', 'says', 'at', 'due'))
  if id then
    waiting = {id, says, queued, due, redis.call('PTTL', claim), redis.call('HEXISTS', messages, id)}
  end
  local left, coming, running_now = {}, {}, {}
  local function at(its) return redis.call('HGET', messages, since(its)) or '' end
  for i, its in ipairs(redis.call('LRANGE', parked, 0, lines - 1)) do left[i] = {its, at(its)} end
  local ends = redis.call('ZRANGE', sent, 0, most - 1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    coming[#coming + 1] = {ends[i], at(ends[i]), integer(ends[i + 1])}
  end
  local live, dead = all_runs()
  for i = 1, math.min(#live, most) do
    local token, its, weight = unpack(live[i])
    running_now[i] = {its, weight, redis.call('HGET', holders, token), ends_of(token) - millis}
  end
  local unsent = redis.call('ZCOUNT', sent, '-inf', integer(now))
  local again = unsent
  for _, its in ipairs(dead) do again = again + redis.call('HEXISTS', messages, its[2]) end
  return {name, waiting, redis.call('LLEN', parked), left, coming, running_now, #dead + unsent, again}
end
