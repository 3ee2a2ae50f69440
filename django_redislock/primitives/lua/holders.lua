-- Part: a look at the holders of a lock that several may hold.
--
-- Gives  alive  the least score of a lease that has not ended
--        holders_of(lock, holders, most, read)  up to `most` holders, each {value, pttl ms, token}: the one
--                whose lease ends first comes first. The value is "" if the record of a holder is lost.
--                `read` is redis.call; or redis.pcall, if records may be in a key of another type
-- Needs  clock
-- luacheck: read globals millis integer

local alive = '(' .. integer(millis)

local function holders_of(lock, holders, most, read)
  local found = {}
  local ends = redis.call('ZRANGE', lock, alive, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #ends, 2 do
    local record = read('HGET', holders, ends[i])
    if type(record) ~= 'string' then record = '' end
    found[#found + 1] = {record, ends[i + 1] - millis, ends[i]}
  end
  return found
end
