-- Part: the keys of the scripts of a mutex, which may have several names, and their argument.
--
-- KEYS   for each name: lock, queue, waiters, history, gone (as in lock.lua), noted (as in note.lua); then
--        index, clock; then at most two others
-- ARGV   1 token    32 characters; the answer begins with it
-- Gives  LOCKS            the number of names
--        turn_to(number)  let all functions work on the lock of this number from now on. They begin with the
--                         first one
--        and what lock.lua gives
-- luacheck: ignore 311

local LOCKS = math.floor((#KEYS - 2) / 6)
local lock, queue, waiters, history, gone, noted = unpack(KEYS, 1, 6)
local index, clock = KEYS[6 * LOCKS + 1], KEYS[6 * LOCKS + 2]
local token = ARGV[1]

local function turn_to(number)
  local before = 6 * (number - 1)
  lock, queue, waiters, history, gone, noted = unpack(KEYS, before + 1, before + 6)
end
