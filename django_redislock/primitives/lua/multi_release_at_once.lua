-- The case of most releases, before everything else, as mutex_release_at_once.lua: the locks are still ours,
-- nothing else was written down of their holder, and nobody waits for them.
--
-- KEYS, ARGV  as in multi_release.lua
-- Returns     token

if ARGV[2] == '0' then
  local locks, queues = {}, {}
  for i = 1, #KEYS - 2, 5 do
    locks[#locks + 1] = KEYS[i]
    queues[#queues + 1] = KEYS[i + 1]
  end
  local ours = true
  for _, value in ipairs(redis.call('MGET', unpack(locks))) do
    ours = ours and value and string.sub(value, 1, 33) == ARGV[1] .. '|'
  end
  if ours and redis.call('EXISTS', unpack(queues)) == 0 then
    redis.call('DEL', unpack(locks))
    return ARGV[1]
  end
end
