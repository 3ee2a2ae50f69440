-- Part: how a lock looks, for operators. Nothing is written.
--
-- Gives  seen(its, index, most, suspect)  {value or nil, pttl ms, number of waiters, number of
--          holders, a broken key or "", the beginning of the note or "", ...}; {value or nil, pttl ms} is a
--          lock with one holder, for which nobody waits, without a note. Of a lock that several may hold,
--          value and pttl are those of the holder whose lease ends first, and then come {value, pttl ms,
--          token} of up to `most`; "" is the value of a holder whose record is lost. `its` are as in
--          broken.lua; `suspect`: look for a broken key even if none is beside the lock
--        looked_at  how many of several holders it has looked at until now
-- Needs  holders, broken
-- luacheck: read globals alive holders_of broken

local looked_at = 0

local function seen(its, index, most, suspect)
  local lock = its[1]
  local value, pttl = redis.pcall('GET', lock), redis.call('PTTL', lock)
  local plain = type(value) ~= 'table'
  local number, each = plain and value and 1 or 0, {}
  if not plain then
    local counted = redis.pcall('ZCOUNT', lock, alive, '+inf')
    if type(counted) == 'number' then  -- else it is no lock that several may hold
      number, each = counted, holders_of(lock, its[4], most, redis.pcall)
    end
    looked_at = looked_at + #each
    value, pttl = unpack(each[1] or {false, pttl})
  end
  if plain and not suspect and redis.call('EXISTS', unpack(its, 2)) == 0 then
    return {value, pttl}
  end
  local key, waiters = broken(its, index)[1] or '', redis.pcall('ZCARD', its[2])
  if type(waiters) ~= 'number' then waiters = 0 end
  local note = redis.pcall('GETRANGE', its[8], 0, 149)
  if type(note) ~= 'string' then note = '' end
  if key == '' and (not value or plain and waiters == 0 and note == '') then return {value, pttl} end
  return {value, pttl, waiters, number, key, note, unpack(each)}
end
