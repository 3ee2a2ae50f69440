-- Look at many locks, without writing anything: a Redis user who may only read can call it.
--
-- KEYS     for each lock: lock, queue, holders; then index (as in lock.lua and permits.lua)
-- ARGV     1 the word that the answer begins with
--          2 most    so many holders of one lock at most; and after so many in all, no other
--                  lock is begun: Redis stands still meanwhile
--          3 listed  1: only values of this package and locks in the index, since of other keys
--                  nobody knows what they are; else 0
-- Returns  {now µs, each lock as in inspection.lua, ...}; perhaps not of all: ask again for the others
-- luacheck: read globals now integer VALUE seen looked_at

local index = KEYS[#KEYS]
-- As in lock.lua: then there is no index, and each lock counts as listed.
local CLUSTER = index == KEYS[1]
local found = {integer(now)}
local most, listed = tonumber(ARGV[2]), ARGV[3] == '1'

for i = 1, (#KEYS - 1) / 3 do
  if looked_at >= most then break end
  local lock = KEYS[3 * i - 2]
  local its = seen(lock, KEYS[3 * i - 1], KEYS[3 * i], most)
  local value = its[1]
  if listed and not CLUSTER and value and not string.find(value, VALUE)
    and not redis.call('ZSCORE', index, lock) then
    its[1] = false
  end
  found[i + 1] = its
end
return found
