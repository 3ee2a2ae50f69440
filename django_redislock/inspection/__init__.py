"""Who holds what, who waits, what is stale; and clearing it safely. For people, not for programs
that want a lock.

Nothing here blocks a lock, or waits for one. A page of locks is read from the index, without SCAN;
what never entered it (values of others below our prefix) is found by `discover`, on request.

A Redis Cluster has no index, which would be in a slot of its own, so there all locks are found by
SCAN on every primary, up to a number of keys: what is asked about one lock costs as much as
elsewhere, a list costs more.

**Stale** is decided from what is seen, and never from a lock's age:

*   it has no TTL, so nobody ends it, and its process is not known to live;
*   it is a time in the manner of the old `SETNX` locks, and that has passed;
*   its process shows no sign of life: each process that holds leases keeps one key at the server,
    for 30 seconds at a time, and its leases themselves are renewed.

A process that has been silent for less than that, since it was killed, stopped, or its host can't
reach the server, is *unknown*: it may yet come back.
"""

from .facts import (
    SHARED,
    UNREADABLE,
    Counts,
    Ending,
    HolderInfo,
    Kind,
    LockInfo,
    Page,
    Past,
    PastHolder,
    State,
    WaiterInfo,
)
from .inspector import ORDERS, Inspector
from .several import RedlockInspector

__all__ = [
    "ORDERS",
    "SHARED",
    "UNREADABLE",
    "Counts",
    "Ending",
    "HolderInfo",
    "Inspector",
    "Kind",
    "LockInfo",
    "Page",
    "Past",
    "PastHolder",
    "RedlockInspector",
    "State",
    "WaiterInfo",
]
