-- Part: the time at which a free lock is taken, in one step: the request of most acquires. To make functions,
-- a table or the text of a number takes as long as a command here, so it makes none. The time has 16 digits,
-- so its texts compare as the numbers do.
--
-- KEYS   those that must not be there; the last one is clock
-- Gives  keys, argv, call
--        fence  the fencing token, which is the time of acquiring, too; nil if anything is unusual: then
--               nothing was done
-- luacheck: ignore 311

local keys, argv, call, fence = KEYS, ARGV, redis.call, nil
if call('EXISTS', unpack(keys, 1, #keys - 1)) == 0 then
  local clock, time = keys[#keys], call('TIME')
  local micros = time[2] .. ''  -- Dragonfly's is a number
  if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
  fence = time[1] .. micros
  local last = redis.pcall('SET', clock, fence, 'GET')
  if last and (#last ~= #fence or last >= fence or last <= '1') then
    -- The server's clock was set back, or the last fencing token can't be read.
    fence = nil
    if type(last) == 'string' then call('SET', clock, last) end
  end
end
