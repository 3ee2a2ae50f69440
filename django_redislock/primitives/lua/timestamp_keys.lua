-- Part: the keys and the argument that all scripts of a TimestampLock have in common.
--
-- KEYS   1 lock     string  when the lock ends, in seconds since the epoch: all that old clients know
--        2 beside   hash    what only we know: holder  our last holder, as a value (value.lua) with 0
--                                                      for the fencing token
--                                              until   what it wrote at the key
--        3 history  list    as in history.lua
--        4 index    zset    as in lock.lua
--        5 gone     string  as in lock.lua
-- ARGV   1 token    32 characters; the answer begins with it
-- Gives  these names

local lock, beside, history, index, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token = ARGV[1]
