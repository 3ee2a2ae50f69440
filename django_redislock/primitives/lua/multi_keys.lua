-- Part: the keys of several locks, and the argument that their scripts have in common.
--
-- KEYS   as in multi.lua
-- ARGV   1 token    32 characters; the answer begins with it
-- Gives  lock, queue, waiters, history, gone, which multi.lua sets for one lock after the other
--        index, clock, token, CLUSTER, MOST, as in lock.lua

local lock, queue, waiters, history, gone
local index, clock = KEYS[#KEYS - 1], KEYS[#KEYS]
local token = ARGV[1]

local MOST = 1000
local CLUSTER = index == KEYS[1]
