-- Part: how a lock looks, for operators. Nothing is written.
--
-- Gives  seen(its, index, most, suspect)  {value or nil, pttl ms, number of waiters, number of
--          holders, a broken key or "", the beginning of the note or "", ...}; {value or nil, pttl ms} is a
--          lock with one holder, for which nobody waits, without a note. Of a lock that several may hold,
--          value and pttl are those of the holder whose lease ends first, and then come {value, pttl ms,
--          token} of up to `most`; "" is the value of a holder whose record is lost. `its` are as in
--          broken.lua; `suspect`: look for a broken key even if none is beside the lock
--        looked_at  how many of several holders it has looked at until now
-- Needs  clock, broken
-- luacheck: read globals now integer broken

local millis = math.floor(now / 1000)
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
    if type(record) ~= 'string' then record = '' end
    each[#each + 1] = {record, ends[i + 1] - millis, ends[i]}
    looked_at = looked_at + 1
  end
  return each
end

local function seen(its, index, most, suspect)
  local lock = its[1]
  local value, pttl, each = redis.pcall('GET', lock), redis.call('PTTL', lock), nil
  local plain = type(value) ~= 'table'
  if not plain then
    each = holders_of(lock, its[4], most)
    value = each and each[2] and each[2][1] or false
    if value then pttl = each[2][2] end
  end
  if plain and not suspect and redis.call('EXISTS', unpack(its, 2)) == 0 then
    return {value, pttl}
  end
  local key, waiters = broken(its, index)[1] or '', redis.pcall('ZCARD', its[2])
  if type(waiters) ~= 'number' then waiters = 0 end
  local note = redis.pcall('GETRANGE', its[8], 0, 149)
  if type(note) ~= 'string' then note = '' end
  if key == '' and (not value or plain and waiters == 0 and note == '') then return {value, pttl} end
  return {value, pttl, waiters, each and each[1] or value and 1 or 0, key, note, unpack(each or {}, 2)}
end
