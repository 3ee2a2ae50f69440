-- Remove names from the index whose lease has ended without a release: they have nobody else to do it.
-- As mutex_grant.lua no function.
local ended = redis.call('ZCOUNT', index, '-inf', string.format('%.0f', now / 1000 - MINUTE))
if ended > 0 then
  redis.call('ZREMRANGEBYRANK', index, 0, math.min(ended, MOST) - 1)
end
