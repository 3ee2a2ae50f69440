-- Look which keys of a lock have another type than its scripts give them, so that nobody can take it. List
-- the lock, so that people see it; or delete these keys.
--
-- KEYS     as in broken.lua; then index (as in lock.lua)
-- ARGV     1 the word that the answer begins with
--          2 reads  a command that reads the lock, if its key has the right type; or "": delete
-- Returns  these keys
-- Needs  clock, broken
-- luacheck: read globals now integer broken

local lock, index, reads = KEYS[1], KEYS[#KEYS], ARGV[2]
local found = broken(KEYS, index)
if reads == '' then
  if found[1] then redis.call('DEL', unpack(found)) end
else
  if not found[1] and type(redis.pcall(reads, lock)) == 'table' then found[1] = lock end
  if index ~= lock then redis.pcall('ZADD', index, 'GT', integer(now / 1000 + 60000), lock) end
end
return found
