-- Look at many locks, without writing anything: a user who may only read can call it.
--
-- KEYS     for each lock: lock, queue, holders; then index (as in queue.lua and permits.lua)
-- ARGV     for each lock: name; then how many holders of one at most, and of how many in all not to
--          begin with another lock: Redis would stand still meanwhile; then 1: only those in the
--          index, since of other keys nobody knows what they are; else 0
-- Returns  {now µs, {value or nil, pttl ms, number of waiters, number of holders, ...}, ...} of the
--          first locks, and perhaps not of all: ask again for the others; of a lock that several
--          may hold, value and pttl are those of the one whose lease ends first, and then come
--          {value, pttl ms, token} of all; "" is the value of one whose record is lost

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local TOKEN = '^' .. string.rep('%w', 32) .. '$'

local index = KEYS[#KEYS]
-- As in lock.lua: then there is none, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {string.format('%.0f', time[1] * 1000000 + time[2])}
local most, listed = ARGV[#ARGV - 1], ARGV[#ARGV] == '1'
local looked_at = 0

-- Those who hold one that several may hold; nil: it is none.
local function holders_of(lock, holders)
  local alive = string.format('(%.0f', now)
  local number = redis.pcall('ZCOUNT', lock, alive, '+inf')
  if type(number) == 'table' then return end
  local each = {number}
  local ends = redis.call('ZRANGE', lock, alive, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #ends, 2 do
    local record = redis.pcall('HGET', holders, ends[i])
    if type(record) ~= 'string' then
      if not string.find(ends[i], TOKEN) then return end
      record = ''
    end
    each[#each + 1] = {record, ends[i + 1] - now, ends[i]}
    looked_at = looked_at + 1
  end
  return each
end

for i = 1, #ARGV - 2 do
  if looked_at >= tonumber(most) then break end
  local lock, queue, holders, name = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], ARGV[i]
  local value, pttl, each = redis.pcall('GET', lock), redis.call('PTTL', lock), {1}
  if type(value) == 'table' then
    each = holders_of(lock, holders)
    if not each then
      -- Of another type: not ours, that much is certain.
      value, each = 'no string', {1}
    elseif each[1] == 0 then
      value = false
    else
      value, pttl = each[2][1], each[2][2]
    end
  end
  if listed and not CLUSTER and not redis.call('ZSCORE', index, name) then value = false end
  local waiters = redis.pcall('ZCARD', queue)
  found[i + 1] = {value, pttl, type(waiters) == 'number' and waiters or 0, unpack(each)}
end
return found
