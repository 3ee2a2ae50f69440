-- Part: the keys of many leases.
--
-- KEYS   the last one is the index; on a cluster it is the first lock's key, as in lock.lua
-- Gives  lock, history, which a script sets for one lease after the other
--        index, CLUSTER, MOST, as in lock.lua

local lock, history
local index = KEYS[#KEYS]

local MOST = 1000
local CLUSTER = index == KEYS[1]
