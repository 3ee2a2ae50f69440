-- Part: the key of the ledger, in a script for one job.
--
-- KEYS   the last one
-- Gives  ledger

local ledger = KEYS[#KEYS]
