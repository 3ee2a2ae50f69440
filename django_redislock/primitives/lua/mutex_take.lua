-- Take locks that are free, in one step: the request of most acquires. To make functions, a table or the text
-- of a number takes as long as a command here, so it makes none. The time has 16 digits, so its texts compare
-- as the numbers do. If anything is unusual nothing is done, and mutex_acquire.lua is asked.
--
-- KEYS     for each lock: lock, queue, gone (as in lock.lua); then perhaps a record, which must not be
--          there; then clock
-- ARGV     1 token, 2 ttl, 3 says  as in mutex_acquire.lua
--          4 answers  as in record_acquire.lua; missing without a record
-- Returns  token|fencing token, which is the time of acquiring, too
--          {token, {3, record}}  nothing was done, since this record makes it needless
--          {token}               nothing was done

local keys, call = KEYS, redis.call
local clock = keys[#keys]
if call('EXISTS', unpack(keys, 1, #keys - 1)) == 0 then
  local argv, time = ARGV, call('TIME')
  local ttl, micros = argv[2], time[2] .. ''  -- Dragonfly's is a number
  if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
  local fence = time[1] .. micros
  local last = redis.pcall('SET', clock, fence, 'GET')
  if not last or (#last == #fence and last < fence and last > '1') then
    local answer = argv[1] .. '|' .. fence
    local value = answer .. '||' .. ttl .. '|' .. argv[3]
    for i = 1, #keys - 3, 3 do call('SET', keys[i], value, 'PX', ttl) end
    return answer
  end
  -- The server's clock was set back, or the last fencing token can't be read.
  if type(last) == 'string' then call('SET', clock, last) end
end
local record = ARGV[4] and call('GET', keys[#keys - 1])
if record and ARGV[4] ~= '' and string.find(record, ARGV[4]) then return {ARGV[1], {3, record}} end
return {ARGV[1]}
