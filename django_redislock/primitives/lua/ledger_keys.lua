-- Part: the key of the ledger, where a script sets it for one job after the other.
--
-- Gives  ledger

local ledger
