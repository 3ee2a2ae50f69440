-- The facts that a scheduler needs about its jobs, and its sign of life. An unknown job begins now: no
-- earlier tick belongs to it.
--
-- KEYS     for each job: lock, ledger
-- ARGV     1 the word that the answer begins with
--          2 every   a scheduler that stays writes its sign of life once in so many µs; "": the
--                    scheduler ends after this look, and the sign of life is removed
-- Returns  {now µs, then for each job {claimed µs, tick of its open run or "", left ms, request,
--          paused}}, where left is the rest of that run's lease; negative: it has ended; claimed is
--          "" if something else is at the ledger's key, or in its field; request is as in ledger.lua;
--          paused is 1 or 0
-- Needs  clock, ledger
-- luacheck: read globals now integer look instant readable parts fence_of YEAR, globals ledger

local every = ARGV[2]

local function sign(seen)
  if every == '' then
    if seen then redis.call('HDEL', ledger, 'seen') end
  else
    local last = instant(seen)
    -- A time in the future is of a clock that was wrong.
    if not last or last > now or now - last >= tonumber(every) then
      redis.call('HSET', ledger, 'seen', integer(now))
    end
  end
end

local replies = {integer(now)}
for i = 1, #KEYS, 2 do
  local lock = KEYS[i]
  ledger = KEYS[i + 1]
  local claimed, run, tick, left, request, paused = '', false, '', -1, '', 0
  local known = redis.pcall('HMGET', ledger, 'claimed', 'open', 'seen', 'request', 'paused')
  -- An error: the key has another type. The other jobs need not fail for that.
  if not known.err then
    local its_claimed, open = known[1], known[2]
    claimed = not its_claimed and integer(now) or instant(its_claimed) and its_claimed or ''
    if not its_claimed then redis.call('HSET', ledger, 'claimed', integer(now)) end
    sign(known[3])
    request = known[4] or ''
    paused = known[5] and 1 or 0
    if redis.call('PTTL', ledger) < YEAR * 0.9 then redis.call('PEXPIRE', ledger, YEAR) end
    run = open and readable(redis.call('HGET', ledger, open))
  end
  if run then
    local fence, _
    tick, _, _, _, _, fence = parts(run)
    if fence_of(look(lock)) == fence then left = redis.call('PTTL', lock) end
  end
  replies[#replies + 1] = {claimed, tick, left, request, paused}
end
return replies
