-- Part: tasks of one name, above a task queue: what waits in the queue, what is parked, what runs.
--
-- The lock is a semaphore, whose holders are the running tasks. A message that finds no permit is parked:
-- it leaves the queue, and its text waits here, in order of arrival. Whoever releases a permit promotes
-- the first one: it is sent to the queue again, and its permit waits for it.
--
-- KEYS   as in permits.lua; then
--        9 claim     hash    the task that waits in the queue: id, says (owner|label), at (µs), sent if it
--                            is known to be there; and of one that settles: first and due (µs), message
--                            (the arguments of the last call)
--        10 parked   list    ids of messages, in order
--        11 sent     zset    id of a promoted message → until when it has its permit, µs
--        12 messages hash    id → weight, a mark, and the message: parked, promoted, or kept until the
--                            end of its run. The mark is "|", or "?" if it gets a new id when it is sent.
--                            tab and id → since when it is kept, µs; older ones have none.
--                            token of a run → the arguments with which it has begun
--        13 runs     hash    token of a run → weight|id
--        14 begun    set     ids that have begun while a promoted message had no id yet: one of them may be
--                            that message
--        15 names    zset    name of tasks → when anything of it ends at the latest, ms. On a cluster it
--                            is the key of the lock, and nothing is listed
--        16 noted    string  as in note.lua
--
-- Gives  claim, parked, sent, messages, runs, TICKET, LASTS, SENDING, since, weight_of, all_runs, taken,
--        heal, unnamed, note, answer
-- Needs  permits
-- luacheck: read globals now integer lock millis ends_of MOST
-- luacheck: globals noted

local claim, parked, sent, messages, runs = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local names = KEYS[15]
noted = KEYS[16]

-- Begins an id that stands for one that the queue has not given yet.
local TICKET = '?'

-- ms. For so long a message is kept at most after the last one of its name: nobody has asked for it.
local LASTS = 30 * 24 * 3600 * 1000

-- µs that the one who promotes a message has to send it.
local SENDING = 10 * 1000000

local promoted, healed = {}, 0

-- The field of messages with the time since which one is kept: people look at many times, and not at the
-- texts.
local function since(id) return '\t' .. id end

-- The weight of a message, its mark and its text.
local function kept(id)
  return string.match(redis.call('HGET', messages, id) or '', '^(%d+)([|?])(.*)$')
end

local function weight_of(id)
  return tonumber((kept(id))) or 1
end

-- The runs that live: {token, id, weight} each; those whose leases have ended; and the weights of the
-- first, by the id.
local function all_runs()
  local alive, dead, weights = {}, {}, {}
  local all = redis.call('HGETALL', runs)
  for i = 1, #all, 2 do
    local weight, id = string.match(all[i + 1], '^(%d+)|(.*)$')
    local group = ends_of(all[i]) and alive or dead
    group[#group + 1] = {all[i], id, weight}
    if group == alive then weights[id] = weight end
  end
  return alive, dead, weights
end

-- Permits that are held, and those that wait for promoted messages.
local function taken()
  local number = 0
  for _, its in ipairs((all_runs())) do number = number + its[3] end
  for _, id in ipairs(redis.call('ZRANGE', sent, 0, -1)) do number = number + weight_of(id) end
  return number
end

local function again(id)
  if redis.call('HEXISTS', messages, id) == 1 then
    redis.call('LPUSH', parked, id)
    healed = healed + 1
  end
end

-- A run whose process was killed, and a promoted message that nobody has sent or begun in time: if its
-- text is kept, it is the next one.
local function heal()
  local _, dead = all_runs()
  for _, its in ipairs(dead) do
    redis.call('HDEL', runs, its[1])
    redis.call('HDEL', messages, its[1])
    again(its[2])
  end
  for _, id in ipairs(redis.call('ZRANGE', sent, '-inf', integer(now), 'BYSCORE', 'LIMIT', 0, MOST)) do
    redis.call('ZREM', sent, id)
    again(id)
  end
end

-- Let as many messages go on as there are permits. One that wants more than all of them runs alone.
local function promote(limit)
  if redis.call('LLEN', parked) == 0 then return end
  local number = taken()
  for _ = 1, MOST do
    local id = redis.call('LINDEX', parked, 0)
    if not id then return end
    local weight, _, message = kept(id)
    if message and number > 0 and number + weight > limit then return end
    redis.call('LPOP', parked)
    if message then
      number = number + weight
      redis.call('ZADD', sent, integer(now + SENDING), id)
      promoted[#promoted + 1] = {id, message}
    end
  end
end

-- A promoted message whose new id nobody has said yet: any id may be its.
local function unnamed()
  for _, id in ipairs(redis.call('ZRANGE', sent, '-inf', integer(now + SENDING), 'BYSCORE')) do
    if select(2, kept(id)) == '?' then return id end
  end
end

-- Lists find the name for so many ms more.
local function note(name, lives)
  if names ~= lock then
    redis.call('ZADD', names, 'GT', integer(millis + lives), name)
    redis.call('ZREMRANGEBYSCORE', names, '-inf', integer(millis))
    redis.call('PEXPIRE', names, LASTS)
  end
end

-- Promote, and return the answer of a script, with the messages that were promoted, each its id and its
-- text, and how many were healed at its end.
local function answer(limit, found)
  promote(limit)
  for _, key in ipairs({parked, sent, messages, runs}) do redis.call('PEXPIRE', key, LASTS) end
  found[#found + 1], found[#found + 2] = promoted, healed
  return found
end
