-- Part: the case of most releases. Our token still has the lock, and nobody waits for it. Like
-- mutex_acquire_at_once.lua it comes before the parts that are not needed here.
--
-- KEYS, ARGV, answer  as in mutex_release.lua
-- Gives  withdraw  the argument, as a truth value
-- luacheck: read globals lock queue index name token CLUSTER end_hold

local withdraw = ARGV[3] == '1'

do
  local value = not withdraw and redis.pcall('GET', lock)
  if type(value) == 'string' and string.sub(value, 1, 32) == token
    and redis.call('EXISTS', queue) == 0 then
    end_hold(value)
    if not CLUSTER then redis.call('ZREM', index, name) end
    return {1}
  end
end
