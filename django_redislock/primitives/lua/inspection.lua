-- Part: how a lock looks, for operators. Nothing is written.
--
-- Gives  seen(lock, queue, holders, most)  {value or nil, pttl ms, number of waiters, number of holders,
--          ...}; {value or nil, pttl ms} is a lock with one holder, for which nobody waits. Of a lock
--          that several may hold, value and pttl are those of the holder whose lease ends first, and
--          then come {value, pttl ms, token} of up to `most`; "" is the value of a holder whose record
--          is lost
--        looked_at  how many of several holders it has looked at until now
-- luacheck: read globals now integer NO_STRING

local millis = math.floor(now / 1000)
local TOKEN = '^' .. string.rep('%w', 32) .. '$'
local looked_at = 0

-- The holders of a lock that several may hold; nil: it is no such lock.
local function holders_of(lock, holders, most)
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

local function seen(lock, queue, holders, most)
  local value, pttl, each = redis.pcall('GET', lock), redis.call('PTTL', lock), nil
  if type(value) == 'table' then
    each = holders_of(lock, holders, most)
    if not each then
      value = NO_STRING
    elseif each[1] == 0 then
      value = false
    else
      value, pttl = each[2][1], each[2][2]
    end
  end
  local waiters = redis.pcall('ZCARD', queue)
  if type(waiters) ~= 'number' then waiters = 0 end
  if each and each[2] then return {value, pttl, waiters, unpack(each)} end
  if waiters > 0 then return {value, pttl, waiters, 1} end
  return {value, pttl}
end
