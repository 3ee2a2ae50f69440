-- The case of most releases, before everything else: the lock is still ours, nothing else was written
-- down of its holder, and nobody waits for it.
--
-- KEYS, ARGV  as in mutex_release.lua
-- Returns     token

if ARGV[2] == '0' then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, 33) == ARGV[1] .. '|'
    and redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('DEL', KEYS[1])
    return ARGV[1]
  end
end
