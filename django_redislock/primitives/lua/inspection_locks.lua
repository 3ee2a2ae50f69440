-- Look at many locks, without writing anything: a Redis user who may only read can call it.
--
-- KEYS     for each lock: as in broken.lua; then index (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          2 most    so many holders of one lock at most; and after so many in all, no other
--                  lock is begun: Redis stands still meanwhile
--          3 listed  1: only values of this package and locks in the index, since of other keys
--                  nobody knows what they are; else 0
-- Returns  {now µs, each lock as in inspection.lua, ...}; perhaps not of all: ask again for the others
-- Needs  value, inspection
-- luacheck: read globals now integer VALUE seen looked_at

local index = KEYS[#KEYS]
-- As in lock.lua: then there is no index, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {integer(now)}
local most, listed = tonumber(ARGV[2]), ARGV[3] == '1'
local suspect = not CLUSTER and type(redis.pcall('ZCARD', index)) == 'table'

for i = 1, #KEYS - 1, 8 do
  if looked_at >= most then break end
  local lock = KEYS[i]
  local its = seen({unpack(KEYS, i, i + 7)}, CLUSTER and lock or index, most, suspect)
  if listed and not CLUSTER and not suspect and not string.find(its[1] or '', VALUE)
    and not redis.call('ZSCORE', index, lock) then
    its = {false, its[2]}
  end
  found[#found + 1] = its
end
return found
