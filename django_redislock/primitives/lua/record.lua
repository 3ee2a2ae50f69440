-- What the scripts share that write a record.

-- For so many ms; '' for good.
local function keep(record, value, ttl)
  if ttl == '' then
    redis.call('SET', record, value)
  else
    redis.call('SET', record, value, 'PX', ttl)
  end
end
