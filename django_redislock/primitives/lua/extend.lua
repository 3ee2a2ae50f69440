-- Part: let many leases live for another ttl from now; a TTL that somebody removed is repaired. It never
-- takes away what a lease has: an early request that arrives late would shorten what the answer to a later
-- one has promised. A lease that is not ours is not touched.
--
-- KEYS   for each lease so many keys, its lock first; then index, clock (as in lock.lua); then, if it is
--        wanted why a lease is not held, for each lease its gone
-- ARGV   2 store  1: the ttl is another one than at the lock, and is written there
--        then for each lease: token, ttl in ms
-- Gives  extend_all(per, look_at, extend)  do it for leases of `per` keys each, and return what
--          mutex_extend.lua says. look_at(token, lock, beside) returns the value of a token that holds the
--          lock; or nil and what is there. extend(value, left, lives, store, token, lock, beside) lets it
--          live for `lives` ms, if that is more than is `left`
-- Needs  clock, value, fence_lost
-- luacheck: read globals millis integer parts_of mark_of remember_fence

local function extend_all(per, look_at, extend)
  local number, store = #ARGV / 2 - 1, ARGV[2] == '1'
  local index, clock = KEYS[per * number + 1], KEYS[per * number + 2]
  local listed = index ~= KEYS[1]  -- else it is a cluster, as in lock.lua
  -- The last fencing token. On a cluster nobody knows, since it always has a TTL there.
  local lost = redis.call('PTTL', clock) ~= -1
  local reply, scores, newest = {0}, {}, 0
  local ttl, lives, ends
  for i = 1, number do
    local token, lock, beside = ARGV[2 * i + 1], KEYS[per * i - per + 1], KEYS[per * i]
    local value, other = look_at(token, lock, beside)
    if value then
      if ttl ~= ARGV[2 * i + 2] then  -- most leases have the same
        ttl = ARGV[2 * i + 2]
        lives = tonumber(ttl)
        ends = integer(millis + lives)
      end
      local left = redis.call('PTTL', lock)
      extend(value, left, lives, store, token, lock, beside)
      if listed and left < lives and mark_of(value) ~= '|' then
        scores[#scores + 1] = ends
        scores[#scores + 1] = lock
      end
      if lost then
        local _, _, fence = parts_of(value)
        newest = math.max(newest, tonumber(fence or 0))
      end
      reply[1] = 1
    else
      local gone = KEYS[per * number + 2 + i]
      reply[#reply + 1] = {i, other, gone and redis.call('GET', gone) or false}
    end
  end
  if scores[1] then redis.call('ZADD', index, unpack(scores)) end
  if lost then remember_fence(clock, newest) end
  return reply
end
