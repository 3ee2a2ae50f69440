-- Give the free lock to `to`, for `lives` ms. No function, since most scripts do just that, and nothing
-- else: it is included where it is done, after lock.lua, with `ttl`, `owner`, `label` and `handed`.
--
-- The fencing token is the server's clock, which goes on where a counter would start again (lost data,
-- eviction, failover), unless the clock went back, which the tail knows. And up to 5 more, so that its
-- remainder counts the holders: each script knows without a read in which field one is remembered, and
-- the next one takes that of the oldest. Who is found there without an end, and not at the lock, has
-- lost it.
local least = 1 + (redis.call('HGET', tail, 'fence') or 0)
local fence = math.max(now, least)
fence = fence + (least - fence) % HOLDERS
local fencing_token = string.format('%.0f', fence)
local value = to .. '|' .. fencing_token .. '|' .. string.format('%.0f', now) .. '|' .. ttl .. '|'
  .. owner .. '|' .. label
-- Who was handed the lock does not hold it before it knows.
redis.call('HSET', tail, 'fence', fencing_token, 'handed', handed or '',
  fence % HOLDERS, handed and '' or value)
redis.call('PEXPIRE', tail, remembers(ttl, fence))
if not CLUSTER then
  redis.call('ZADD', index, string.format('%.0f', now / 1000 + lives), name)
  -- A name's first holder does it, and a few of the others: that is enough.
  if fence % HOLDERS == 1 then
    -- include index_ended.lua
  end
end
-- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
redis.call('SET', lock, value, 'PX', lives)
