-- Part: in place of the fencing tokens, for a script that only looks: it works whatever the key of the last
-- one has.
--
-- Gives  next_fence()  an error

local function next_fence() error('a script that only looks gives no fencing token', 0) end
