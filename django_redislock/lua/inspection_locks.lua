-- Look at many locks. The index is put right on the way: what has gone leaves it, and what is there
-- enters it, unless a stranger has written it.
--
-- KEYS     for each lock: lock, queue; then index (as in mutex.lua)
-- ARGV     for each lock: name; then 1: only those in the index, since of other keys nobody knows
--          what they are; else 0
-- Returns  {now µs, {value or nil, pttl ms, number of waiters}, ...}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local OURS = '^%x+|%d+|%d+|%d+|[^|]*|'

local index = KEYS[#KEYS]
-- As in mutex.lua: then there is none, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {string.format('%.0f', time[1] * 1000000 + time[2])}
local listed = ARGV[#ARGV] == '1'
for i = 1, #ARGV - 1 do
  local lock, queue, name = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i]
  local value = redis.pcall('GET', lock)
  -- What is at the key when it is of another type: not ours, that much is certain.
  if type(value) == 'table' then value = 'no string' end
  local known = CLUSTER or redis.call('ZSCORE', index, name)
  if listed and not known then value = false end
  local pttl = redis.call('PTTL', lock)
  if not value and not CLUSTER then
    redis.call('ZREM', index, name)
  elseif value and pttl > 0 and string.find(value, OURS) and not known then
    redis.call('ZADD', index, string.format('%.0f', now + pttl), name)
  end
  local waiters = redis.pcall('ZCARD', queue)
  found[i + 1] = {value, pttl, type(waiters) == 'number' and waiters or 0}
end
return found
