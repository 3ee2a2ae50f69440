-- Look at many locks, without writing anything: a Redis user who may only read can call it.
--
-- KEYS     for each lock: lock, queue, holders; then index (as in lock.lua and permits.lua)
-- ARGV     for each lock: name
--          then most    return at most this number of holders of one lock; and after this number of
--                       holders in all, begin no other lock: Redis serves nobody else meanwhile
--          then listed  1: only locks in the index, since other keys may be anything; else 0
-- Returns  {now µs, {value or nil, pttl ms, number of waiters, number of holders, ...}, ...} of the
--          first locks, and perhaps not of all: ask again for the others. If several may hold a
--          lock, value and pttl belong to the holder whose lease ends first, and then follows
--          {value, pttl ms, token} of each holder; "" is the value of a holder whose record is lost
-- luacheck: read globals now integer NO_STRING

local millis = math.floor(now / 1000)
local TOKEN = '^' .. string.rep('%w', 32) .. '$'

local index = KEYS[#KEYS]
-- As in lock.lua: then there is no index, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {integer(now)}
local most, listed = ARGV[#ARGV - 1], ARGV[#ARGV] == '1'
local looked_at = 0

-- The holders of a lock that several may hold; nil: it is another kind of lock.
local function holders_of(lock, holders)
  local alive = '(' .. integer(millis)
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
    each[#each + 1] = {record, ends[i + 1] - millis, ends[i]}
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
      value, each = NO_STRING, {1}
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
