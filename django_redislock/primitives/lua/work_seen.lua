-- Part: how the tasks of one name look, for operators. Nothing is written.
--
-- Gives  seen(name, most, lines)  {name, id of the one with the claim or nil, how many are parked, lapsed:
--          how many have to be healed, how many of these are sent again then, {{stage, id, since µs or "",
--          ms that it has its permit or its claim or "", owner|label or the record of one that runs,
--          weight, due µs or ""}, ...}}: up to so many (most) of each stage, and so many lines of the
--          parked ones
-- Needs  work
-- luacheck: read globals now integer millis holders ends_of claim parked sent messages since all_runs

local function seen(name, most, lines)
  local claimed, says, queued, due = unpack(redis.call('HMGET', claim, 'id', 'says', 'at', 'due'))
  local found, shown = {}, {}
  local function show(stage, id, left, record, weight)
    local own, at = id == claimed, redis.call('HGET', messages, since(id))
    shown[id] = true
    local by, begins = record or own and says or '', own and due or ''
    found[#found + 1] = {stage, id, at or own and queued or '', left or '', by, weight or 1, begins}
  end
  local live, dead = all_runs()
  for i = 1, math.min(#live, most) do
    local token, id, weight = unpack(live[i])
    show('running', id, ends_of(token) - millis, redis.call('HGET', holders, token), weight)
  end
  local from = '(' .. integer(now)
  local ends = redis.call('ZRANGE', sent, from, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #ends, 2 do show('promoted', ends[i], (ends[i + 1] - now) / 1000) end
  for _, id in ipairs(redis.call('LRANGE', parked, 0, lines - 1)) do show('parked', id) end
  if claimed and not shown[claimed] then
    local stage = redis.call('HEXISTS', messages, claimed) == 1 and 'parked' or 'queued'
    show(stage, claimed, redis.call('PTTL', claim))
  end
  local lapsed = #dead + redis.call('ZCOUNT', sent, '-inf', integer(now))
  local again = lapsed
  for _, its in ipairs(dead) do again = again - 1 + redis.call('HEXISTS', messages, its[2]) end
  return {name, claimed, redis.call('LLEN', parked), lapsed, again, found}
end
