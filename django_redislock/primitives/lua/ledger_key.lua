-- Part: the key of the ledger. A script for several jobs sets it for one after the other.
--
-- KEYS   the last one
-- Gives  ledger

local ledger = KEYS[#KEYS]
