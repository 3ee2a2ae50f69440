-- Part: how a free mutex is given to somebody.
--
-- KEYS   as in lock.lua, of which
--        1 lock     string   a value as in value.lua
--        4 tail     hash     fence     the last fencing token
--                            released  the token that was released last
--                            lasted    how long that token held the lock, µs
--                            handed    the waiter that was handed the lock and has not confirmed it
--                            0 to 5    the past holders, each in the field of its fencing token
--                                      modulo PAST_HOLDERS: its value; after the end of its
--                                      hold, a tab and the way of it:
--                                      released|lasted, µs  or  cleared|lasted, µs|by whom|reason
-- Gives  grant(to, ttl, lives, owner, label, handed)
--          let the token `to` hold the lock for `lives` ms; `handed` if it has to confirm that.
--          Returns the fencing token
-- luacheck: read globals now integer lock tail PAST_HOLDERS remembers enlist unlist_ended

-- The fencing token is the server's clock, or more than the last token that the tail remembers. A
-- counter would start again after lost data, eviction or a failover; a clock does not, unless it was
-- set back. Up to 5 is added, so that its remainder counts the holders: each script knows
-- without a read in which field a holder is remembered, and the next holder takes the field of the
-- oldest. A holder without an end in the tail, which is not at the lock either, has lost the lock.
local function grant(to, ttl, lives, owner, label, handed)
  local least = 1 + (redis.call('HGET', tail, 'fence') or 0)
  local fence = math.max(now, least)
  fence = fence + (least - fence) % PAST_HOLDERS
  local fencing_token = integer(fence)
  local value = to .. '|' .. fencing_token .. '|' .. integer(now) .. '|' .. ttl .. '|' .. owner
    .. '|' .. label
  -- A waiter that was handed the lock does not hold it before it knows of it.
  redis.call('HSET', tail, 'fence', fencing_token, 'handed', handed or '',
    fence % PAST_HOLDERS, handed and '' or value)
  redis.call('PEXPIRE', tail, remembers(ttl, fence))
  enlist(now / 1000 + lives)
  -- The first holder of a name does this, and a few of the later ones, which is enough.
  if fence % PAST_HOLDERS == 1 then unlist_ended() end
  -- Last, so that a key of a wrong type, which ends the script, leaves nothing locked.
  redis.call('SET', lock, value, 'PX', lives)
  return fencing_token
end
