-- Look at the tasks of one name, without touching anything.
--
-- KEYS     as in work.lua
-- ARGV     1 the word that the answer begins with
--          2 most  parked and running ones
-- Returns  {now µs, {id, says, at µs, due µs or nil, pttl ms} or nil, how many are parked, {ids of parked
--          ones}, {{id, until µs} promoted ones ...}, {{id, weight, record, ms
--          that its lease lasts} running ones ...}, lapsed: how many have to be healed}
-- luacheck: read globals now integer millis holders ends_of claim parked sent all_runs

local most = ARGV[2] - 1
local waiting = false
local id, says, at, due = unpack(redis.call('HMGET', claim, 'id', 'says', 'at', 'due'))
if id then waiting = {id, says, at, due, redis.call('PTTL', claim)} end
local coming, running_now = {}, {}
local ends = redis.call('ZRANGE', sent, 0, most, 'WITHSCORES')
for i = 1, #ends, 2 do coming[#coming + 1] = {ends[i], integer(ends[i + 1])} end
local live, dead = all_runs()
for i, its in ipairs(live) do
  if i > most + 1 then break end
  running_now[i] = {its[2], its[3], redis.call('HGET', holders, its[1]), ends_of(its[1]) - millis}
end
return {integer(now), waiting, redis.call('LLEN', parked), redis.call('LRANGE', parked, 0, most), coming,
  running_now, #dead + redis.call('ZCOUNT', sent, '-inf', integer(now))}
