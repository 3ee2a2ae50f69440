-- Take a mutex, or a place in its queue, unless there is a record that makes it needless. Idempotent, as
-- mutex_acquire.lua.
--
-- KEYS     1 to 8 as in locks.lua
--          9 record   string
-- ARGV     1 to 5 as in mutex_acquire.lua
--          6 answers  a Lua pattern: a record that matches makes the lock needless; "": none does
--          7 stale    ms: a record that has no more left is to be renewed; missing: none is
-- Returns  {3, record}  nothing is held, and nobody waits
--          {3, record, 1}  and the record is to be renewed, and nobody does it
--          else as mutex_acquire.lua, and when the lock is ours or busy, then the record, if there is one
-- Needs  locks, mutex_ask, mutex_release_names
-- luacheck: read globals acquire release_names

local record, answers, stale = redis.call('GET', KEYS[9]), ARGV[6], tonumber(ARGV[7])
if record and answers ~= '' and string.find(record, answers) then
  release_names(false)
  if stale and redis.call('PTTL', KEYS[9]) <= stale and redis.call('EXISTS', KEYS[1]) == 0 then
    return {3, record, 1}
  end
  return {3, record}
end
local answer = acquire(tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5])
if answer[1] == 1 or answer[1] == 0 then answer[#answer + 1] = record end
return answer
