-- Part: the key of the ledger, where a script has only one.
--
-- KEYS   the last one
-- Gives  ledger

local ledger = KEYS[#KEYS]
