-- Take locks that are free, in one step. If anything is unusual nothing is done, and mutex_acquire.lua is
-- asked.
--
-- KEYS     for each lock: lock, queue, gone (as in lock.lua); then perhaps a record, which must not be
--          there; then clock
-- ARGV     1 token, 2 ttl, 3 says  as in mutex_acquire.lua
--          4 answers  as in record_acquire.lua; missing without a record
-- Returns  token|fencing token, which is the time of acquiring, too
--          {token, {3, record}}  nothing was done, since this record makes it needless
--          {token}               nothing was done
-- Needs  take
-- luacheck: read globals keys argv call fence

if fence then
  local ttl, answer = argv[2], argv[1] .. '|' .. fence
  local value = answer .. '||' .. ttl .. '|' .. argv[3]
  for i = 1, #keys - 3, 3 do call('SET', keys[i], value, 'PX', ttl) end
  return answer
end
local record = argv[4] and call('GET', keys[#keys - 1])
if record and argv[4] ~= '' and string.find(record, argv[4]) then return {argv[1], {3, record}} end
return {argv[1]}
