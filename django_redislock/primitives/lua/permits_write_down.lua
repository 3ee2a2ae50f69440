-- Write down permits that have been held for a while: in the index, for lists. The history gets them when
-- they end, since the hash of the holders remembers a lease that has ended by itself. A permit that is not
-- ours is left alone.
--
-- KEYS     for each lease: lock, holders; then index (as in permits.lua)
-- ARGV     1 the word that the answer begins with
--          then for each lease its token
-- Returns  how many were written down
-- Needs  leases_keys, index
-- luacheck: read globals now integer index mark_of marked CLUSTER unlist_ended

unlist_ended() -- first: an index of a wrong type ends the script before a mark says that the lock is listed
local scores = {}
for i = 1, #ARGV - 1 do
  local lock, holders, token = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 1]
  local ends = redis.pcall('ZSCORE', lock, token)
  local there = ends and type(ends) ~= 'table'  -- a table is an error
  local record = there and redis.call('HGET', holders, token)
  if there and (not record or mark_of(record) ~= '?') then
    if record and mark_of(record) == '|' then redis.call('HSET', holders, token, marked(record, '+')) end
    scores[#scores + 1] = ends
    scores[#scores + 1] = lock
  end
end
if scores[1] and not CLUSTER then redis.call('ZADD', index, 'GT', unpack(scores)) end
return #scores / 2
