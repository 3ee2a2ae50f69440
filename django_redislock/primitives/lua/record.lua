-- Part: writing a record.
--
-- Gives  keep(record, value, ttl)  write it for `ttl` ms; '': without an end

local function keep(record, value, ttl)
  if ttl == '' then
    redis.call('SET', record, value)
  else
    redis.call('SET', record, value, 'PX', ttl)
  end
end
