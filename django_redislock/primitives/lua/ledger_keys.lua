-- Part: the key of the ledger, in a script that sets it for one job after the other.
--
-- Gives  ledger

local ledger
