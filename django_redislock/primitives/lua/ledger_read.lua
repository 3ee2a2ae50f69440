-- The known facts about jobs, for people.
--
-- KEYS     for each job: lock, ledger
-- ARGV     1 the word that the answer begins with
-- Returns  {now µs, then for each job {claimed µs, paused, done µs, fencing token of the lock,
--          seen µs, request, id, run, id, run, …}}, the newest run first; "" is an unknown fact.
--          If something else is at the ledger's key, there is one run, which can't be read
-- Needs  clock, ledger
-- luacheck: read globals now integer look fence_of ids_of, globals ledger

local replies = {integer(now)}
for i = 1, #KEYS, 2 do
  ledger = KEYS[i + 1]
  local known = redis.pcall('HMGET', ledger, 'claimed', 'paused', 'done', 'open', 'runs', 'seen',
    'request')
  local claimed, paused, done, open, runs, seen, request = unpack(known)
  local fence = fence_of(look(KEYS[i]))
  local reply = {claimed or '', paused or '', done or '', fence or '', seen or '', request or ''}
  local ids = {}
  for id in string.gmatch(ids_of(runs), '%S+') do
    table.insert(ids, 1, id)
  end
  -- The run began so long ago that it is not among the last ones.
  if open and not string.find(runs or '', open, 1, true) then ids[#ids + 1] = open end
  if known.err then
    reply[#reply + 1] = ''
    reply[#reply + 1] = '?'
  end
  for _, id in ipairs(ids) do
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGET', ledger, id) or ''
  end
  replies[#replies + 1] = reply
end
return replies
