-- The case of most releases, before everything else: the lock is still ours, and its mark says that
-- nothing else was written down of its holder. Then nobody waits for it either: whoever takes a place
-- in the queue of a lock that is held lists it, and so changes the mark (index.lua).
--
-- KEYS, ARGV  as in mutex_release.lua
-- Returns     token

if ARGV[2] ~= '1' then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, 33) == ARGV[1] .. '|' then
    redis.call('DEL', KEYS[1])
    return ARGV[1]
  end
end
