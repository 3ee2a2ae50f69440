-- The locks of a part of the index that an operator should see first: their process shows no sign of
-- life, nothing ends their lease, or somebody waits. Python reads these and judges; the others are held.
--
-- KEYS     1 index  zset  as in lock.lua
-- ARGV     1 the word that the answer begins with
--          2 from   3 limit, the part of the index: ranks
--          4 alive  ms; a process whose sign of life is kept for longer is alive
-- Returns  {number of entries of the index, rank, lock, ...}; for an entry whose lock nobody holds, its
--          rank and ""
-- Needs  clock
-- luacheck: read globals millis integer

local index, from, limit, alive = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local signs = string.sub(index, 1, -6) .. 'process:'  -- the index is '<prefix>:index'
local NO_PROCESS = '00000000'
-- From which score on a lease of a lock that several may hold has not ended.
local unended = '(' .. integer(millis)
-- A lock that several may hold is looked at up to so many holders; with more, Python reads it.
local FEW = 100

local lives = {}
local function alone(value)
  local process = string.sub(value, 1, 8)
  if not string.find(process, '^%w%w%w%w%w%w%w%w$') then return true end
  if process == NO_PROCESS then return false end
  if lives[process] == nil then
    lives[process] = redis.call('PTTL', signs .. process) > alive
  end
  return not lives[process]
end

-- The keys of a lock in which something may be wrong, in the order of broken.lua.
local function keys_of(lock)
  local keys = {lock}
  for i, name in ipairs({'queue', 'waiters', 'holders', 'record', 'timestamp', 'ledger', 'note'}) do
    keys[i + 1] = lock .. ':' .. name
  end
  return keys
end

-- Whether one of the holders of a lock that several may hold is in trouble.
local function one_alone(lock)
  local number = redis.pcall('HLEN', lock .. ':holders')
  if type(number) ~= 'number' or number == 0 or number > FEW then return true end
  -- A holder whose record is lost is in trouble, too. Records of ended leases may still be there.
  if redis.pcall('ZCOUNT', lock, unended, '+inf') ~= number then return true end
  for _, record in ipairs(redis.call('HVALS', lock .. ':holders')) do
    if alone(record) then return true end
  end
  return false
end

local found = {redis.call('ZCARD', index)}
for i, lock in ipairs(redis.call('ZRANGE', index, from, from + limit - 1)) do
  local urgent
  local value = redis.pcall('GETRANGE', lock, 0, 7)
  if value == '' and redis.call('EXISTS', unpack(keys_of(lock))) == 0
    or type(value) == 'table' and redis.pcall('ZCOUNT', lock, unended, '+inf') == 0 then
    lock, urgent = '', true
  elseif type(value) == 'table' then
    urgent = one_alone(lock)
  else
    urgent = alone(value) or value == NO_PROCESS and redis.call('PTTL', lock) == -1
  end
  if urgent or redis.call('EXISTS', lock .. ':queue', lock .. ':waiters') > 0 then
    found[#found + 1] = from + i - 1
    found[#found + 1] = lock
  end
end
return found
