-- Part: the history of a lock, for people. It has the holders that held it for a second, and those that
-- were cleared or ended by themselves. The newest comes first.
--
--   value (with "|" for its mark), and when the hold has ended, behind a tab, how:
--   released|lasted, µs  or  cleared|lasted, µs|by whom|reason
--
-- A holder without an end that does not hold the lock has lost it: its lease has ended by itself.
--
-- KEYS   as in lock.lua
-- Gives  write_down(value)                write down a present holder, or one whose lease has ended by itself
--        write_end(value, how, more)      write down that its hold has ended now
--        lasted()                         for how long the last one held it, µs; or false
-- Needs  clock, memory, value
-- luacheck: read globals now integer history PAST_HOLDERS parts_of token_of marked outlives

local A_SECOND = 1000000

-- The token of the newest entry. A holder is written down while it holds the lock, so it is the newest. A
-- key of another type is deleted: no lock is to fail because of what is only for people.
local function newest()
  local entry = redis.pcall('LINDEX', history, 0)
  if type(entry) ~= 'table' then return token_of(entry) end
  if not string.find(tostring(entry.err), 'WRONGTYPE') then error(entry.err, 0) end
  redis.call('DEL', history)
end

local function put(entry, ttl)
  if newest() == token_of(entry) then
    redis.call('LSET', history, 0, entry)
  else
    redis.call('LPUSH', history, entry)
    redis.call('LTRIM', history, 0, PAST_HOLDERS - 1)
  end
  redis.call('PEXPIRE', history, outlives(ttl))
end

local function write_down(value)
  local _, _, _, _, ttl = parts_of(value)
  if ttl then put(marked(value, '|'), ttl) end
end

local function write_end(value, how, more)
  local _, _, _, acquired_at, ttl = parts_of(value)
  if not ttl then return end  -- nobody knows who it was
  local time = now - acquired_at
  if time >= A_SECOND or how ~= 'released' or newest() == token_of(value) then
    put(marked(value, '|') .. '\t' .. how .. '|' .. integer(time) .. (more or ''), ttl)
  end
end

local function lasted()
  for _, entry in ipairs(redis.pcall('LRANGE', history, 0, 1)) do
    local time = string.match(entry, '\t%a+|(%d+)')
    if time then return time end
  end
  return false
end
