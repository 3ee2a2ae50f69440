-- What is known of a lock's past.
--
-- KEYS     1 history  2 lock  3 holders  (as in lock.lua and permits.lua)
-- ARGV     1 the word that the answer begins with
-- Returns  {the lock's value or nil, the past holders, or the present ones, the newest first ...}; one ""
--          if the history is of another type
-- Needs  clock, memory, value
-- luacheck: read globals millis PAST_HOLDERS mark_of marked

local history, lock, holders = KEYS[1], KEYS[2], KEYS[3]
local value = redis.pcall('GET', lock)
if type(value) == 'table' then value = false end  -- a key of another type is no mutex
local found = {value}
-- Holders of a lock that several may hold: leases that have ended, and that are not in the history yet.
local number = redis.pcall('HLEN', holders)
if type(number) == 'number' and number > 0 and number <= PAST_HOLDERS then
  for _, record in ipairs(redis.call('HVALS', holders)) do
    local ends = redis.pcall('ZSCORE', lock, string.sub(record, 1, 32))
    local over = type(ends) == 'table' or not ends or tonumber(ends) <= millis
    if over and mark_of(record) ~= '?' then
      found[#found + 1] = marked(string.match(record, '^[^\t]*'), '|')
    end
  end
end
local entries = redis.pcall('LRANGE', history, 0, PAST_HOLDERS - 1)
if entries.err then entries = {''} end
for _, entry in ipairs(entries) do found[#found + 1] = entry end
return found
