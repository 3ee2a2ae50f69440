-- Take a mutex, or a place in its queue, unless there is a record that makes it needless. Idempotent, as
-- mutex_acquire.lua.
--
-- KEYS     1 to 8 as in locks.lua
--          9 record   string
-- ARGV     1 to 5 as in mutex_acquire.lua
--          6 answers  a Lua pattern: a record that matches makes the lock needless; "": none does
-- Returns  {3, record}  nothing is held, and nobody waits
--          else as mutex_acquire.lua, and when the lock is ours or busy, then the record, if there is one
-- luacheck: read globals acquire give_back

local record, answers = redis.call('GET', KEYS[9]), ARGV[6]
if record and answers ~= '' and string.find(record, answers) then
  give_back(false)
  return {3, record}
end
local answer = acquire(tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5])
if answer[1] == 1 or answer[1] == 0 then answer[#answer + 1] = record end
return answer
