-- Look at many locks, without writing anything: a Redis user who may only read can call it.
--
-- KEYS     for each lock: lock, queue, holders; then index (as in lock.lua and permits.lua)
-- ARGV     1 the word that the answer begins with
--          2 most    so many holders of one lock at most; and after so many in all, no other
--                  lock is begun: Redis stands still meanwhile
--          3 listed  1: only values of this package and locks in the index, since of other keys
--                  nobody knows what they are; else 0
-- Returns  {now µs, {value or nil, pttl ms, number of waiters, number of holders, ...}, ...} of the
--          first locks, and perhaps not of all: ask again for the others. {value or nil, pttl ms} is
--          a lock with one holder, for which nobody waits. Of a lock that several
--          may hold, value and pttl are those of the holder whose lease ends first, and then come
--          {value, pttl ms, token} of all; "" is the value of a holder whose record is lost
-- luacheck: read globals now integer NO_STRING VALUE

local millis = math.floor(now / 1000)
local TOKEN = '^' .. string.rep('%w', 32) .. '$'

local index = KEYS[#KEYS]
-- As in lock.lua: then there is no index, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {integer(now)}
local most, listed = ARGV[2], ARGV[3] == '1'
local looked_at = 0

-- The holders of a lock that several may hold; nil: it is no such lock.
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

for i = 1, (#KEYS - 1) / 3 do
  if looked_at >= tonumber(most) then break end
  local lock, queue, holders = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
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
  if listed and not CLUSTER and value and not string.find(value, VALUE)
    and not redis.call('ZSCORE', index, lock) then
    value = false
  end
  local waiters = redis.pcall('ZCARD', queue)
  waiters = type(waiters) == 'number' and waiters or 0
  if waiters == 0 and each[1] == 1 and not each[2] then
    found[i + 1] = {value, pttl}
  else
    found[i + 1] = {value, pttl, waiters, unpack(each)}
  end
end
return found
