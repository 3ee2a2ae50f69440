-- The case of most releases, before everything else, as mutex_release_at_once.lua: the locks are still ours,
-- and their marks say that nothing else was written down of their holder, and so that nobody waits.
--
-- KEYS, ARGV  as in multi_release.lua
-- Returns     token

if ARGV[2] ~= '1' then
  local locks = {}
  for i = 1, #KEYS - 2, 5 do locks[#locks + 1] = KEYS[i] end
  local ours = true
  for _, value in ipairs(redis.call('MGET', unpack(locks))) do
    ours = ours and value and string.sub(value, 1, 33) == ARGV[1] .. '|'
  end
  if ours then
    redis.call('DEL', unpack(locks))
    return ARGV[1]
  end
end
