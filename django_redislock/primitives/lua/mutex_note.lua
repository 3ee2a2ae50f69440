-- Write a note of the holder of a mutex, or of a task that runs alone. Idempotent, and a late write changes
-- nothing.
--
-- KEYS     1 lock  2 gone  3 note  (as in locks.lua and note.lua)
-- ARGV     1 token        the answer begins with it
--          2 resumptions  how many have taken it over
--          3 turn         larger than that of any earlier note of this token
--          4 text         the rest of the note
--          5 ttl          ms
-- Returns  {1}                 done
--          {0, value, gone}    not held: who holds the lock, what was written of our token
-- Needs  clock, value
-- luacheck: read globals now integer look token_of NO_STRING

local lock, gone, note = KEYS[1], KEYS[2], KEYS[3]
local token, turn = ARGV[1], ARGV[3]
local value = look(lock)
local held = token_of(value) == token
if value == NO_STRING then
  local ends = redis.pcall('ZSCORE', lock, token)
  held, value = type(ends) == 'string' and tonumber(ends) > now / 1000, false
end
if not held then return {0, value, redis.call('GET', gone)} end
local by, _, before = string.match(redis.call('GETRANGE', note, 0, 99), '^(%w*)|(%d+)|(%d+)|')
if by ~= token or tonumber(before) < tonumber(turn) then
  redis.call('SET', note, table.concat({token, ARGV[2], turn, integer(now), ARGV[4]}, '|'), 'PX', ARGV[5])
end
return {1}
