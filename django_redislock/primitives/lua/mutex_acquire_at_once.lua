-- Part: the case of most acquires. Nobody holds the lock, and nobody waits for it. It comes before the
-- parts that are not needed here: making their functions would take longer than this.
--
-- KEYS, ARGV, answer  as in mutex_acquire.lua
-- Gives  ttl, owner, label, inbox, ticket  the arguments
-- luacheck: read globals now lock queue gone token grant

local ttl, owner, label, inbox, ticket =
  tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7]

if redis.call('EXISTS', lock, queue, gone) == 0 then
  return {1, tonumber(grant(token, ttl, ttl, owner, label)), now}
end
