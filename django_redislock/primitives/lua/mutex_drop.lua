-- Give back locks that are still ours and whose marks say that nothing else was written down of their holder:
-- the request of most releases. Then nobody waits for them either: whoever takes a place in the queue of a
-- lock that is held lists it, and so changes the mark (index.lua). Token and mark are enough; the whole value
-- would become a text of Lua, which takes longer. If anything is unusual nothing is done, and
-- mutex_release.lua is asked.
--
-- KEYS     the locks; then perhaps a record
-- ARGV     1 token
--          2 value, 3 ttl  of the record, as in record_release.lua; missing if there is none
-- Returns  token|1, or {token}: nothing was done

local keys, argv, redis = KEYS, ARGV, redis
local token, locks, ours = argv[1], #keys, argv[1] .. '|'
if argv[2] then locks = locks - 1 end
for i = 1, locks do
  if redis.pcall('GETRANGE', keys[i], '0', '32') ~= ours then return {token} end
end
if argv[3] == '' then
  redis.call('SET', keys[#keys], argv[2])
elseif argv[3] then
  redis.call('SET', keys[#keys], argv[2], 'PX', argv[3])
end
redis.call('DEL', unpack(keys, 1, locks))
return ours .. '1'
