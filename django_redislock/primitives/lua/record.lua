-- Part: how a record is written.
--
-- Gives  keep(record, value, ttl)  write it for `ttl` ms; '': for good

local function keep(record, value, ttl)
  if ttl == '' then
    redis.call('SET', record, value)
  else
    redis.call('SET', record, value, 'PX', ttl)
  end
end
