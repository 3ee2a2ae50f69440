-- Look at the holders without touching anything.
--
-- KEYS     1 lock  2 holders  (as in permits.lua)
-- ARGV     1 the word that the answer begins with
--          2 limit  how many at most
-- Returns  {now µs, {what the holder says of itself or nil, pttl ms, token}, ...}, the holder whose lease
--          ends first comes first
-- Needs  clock
-- luacheck: read globals now integer

local lock, holders, limit = KEYS[1], KEYS[2], ARGV[2]
local millis = math.floor(now / 1000)
local alive = '(' .. integer(millis)
local found = {integer(now)}
local ends = redis.call('ZRANGE', lock, alive, '+inf', 'BYSCORE', 'LIMIT', 0, limit,
  'WITHSCORES')
for i = 1, #ends, 2 do
  found[#found + 1] = {redis.call('HGET', holders, ends[i]), ends[i + 1] - millis, ends[i]}
end
return found
