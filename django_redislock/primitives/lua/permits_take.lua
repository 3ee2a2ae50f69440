-- Take a permit of a lock of which nobody holds one, in one step, as mutex_take.lua.
--
-- KEYS     lock, queue, gone, holders (as in permits.lua); then clock
-- ARGV     1 token, 2 ttl, 3 says, 4 kind, 5 limit  as in permits_acquire.lua
-- Returns  as mutex_take.lua
-- Needs  take
-- luacheck: read globals keys argv call fence

if not fence then return {argv[1]} end
local lock, holders, token, ttl = keys[1], keys[4], argv[1], argv[2]
local answer = token .. '|' .. fence
call('HSET', holders, token,
  answer .. '||' .. ttl .. '|' .. argv[3] .. '\t' .. argv[4] .. '|' .. argv[5])
call('PEXPIRE', holders, ttl + 60000)
-- Last, so that whatever ends the script, nothing stays locked.
call('ZADD', lock, string.sub(fence, 1, -4) + ttl, token)
call('PEXPIRE', lock, ttl)
return answer
