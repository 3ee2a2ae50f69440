-- Part: the keys of many leases.
--
-- KEYS   the last one is the index; on a cluster it is the first lock's key, as in lock.lua
-- Gives  lock, history, which a script sets for one lease after the other
--        index, as in lock.lua

local lock, history
local index = KEYS[#KEYS]
