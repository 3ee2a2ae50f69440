-- The case of most releases, before everything else: the lock is still ours, and its mark says that
-- nothing else was written down of its holder. Then nobody waits for it either: whoever takes a place
-- in the queue of a lock that is held lists it, and so changes the mark (index.lua). Token and mark are
-- enough; the whole value would become a text of Lua, which takes longer.
--
-- KEYS, ARGV  as in mutex_release.lua
-- Returns     token

if ARGV[2] ~= '1' then
  local lock, token, redis = KEYS[1], ARGV[1], redis
  if redis.pcall('GETRANGE', lock, '0', '32') == token .. '|' then
    redis.call('DEL', lock)
    return token
  end
end
