-- Part: the keys of the scripts of a mutex, which may have several names, and their argument.
--
-- KEYS   for each name: lock, queue, waiters, history, gone; then index, clock (as in lock.lua); then at most
--        two others
-- ARGV   1 token    32 characters; the answer begins with it
-- Gives  LOCKS            the number of names
--        turn_to(number)  let all functions work on the lock of this number from now on. They begin with the
--                         first one
--        and what lock.lua gives
-- luacheck: ignore 311

local LOCKS = math.floor((#KEYS - 2) / 5)
local lock, queue, waiters, history, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local index, clock = KEYS[5 * LOCKS + 1], KEYS[5 * LOCKS + 2]
local token = ARGV[1]

local MOST = 1000
local CLUSTER = index == lock

local function turn_to(number)
  local before = 5 * (number - 1)
  lock, queue, waiters, history, gone =
    KEYS[before + 1], KEYS[before + 2], KEYS[before + 3], KEYS[before + 4], KEYS[before + 5]
end
