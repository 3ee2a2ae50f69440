"""Find out who holds which lock, who waits for it and what is stale, and clear locks safely. For
operators; programs that want a lock don't need it.

Nothing here blocks a lock or waits for one. A page of locks is read from the index, without SCAN:
those that need somebody first. Foreign values below our prefix are not in the index; `discover`
finds them, on request.

A Redis Cluster has no index, which would need a slot of its own. There, all locks are found by
SCAN on every primary, up to a number of keys: a question about one lock costs as much as on a
single server, a list costs more.

A lock is **stale** by what can be observed, never by its age:

*   it has no TTL, so nothing ends it, and no process is known to hold it;
*   it is a time, as the old `SETNX` locks have it, and that time has passed;
*   its process shows no sign of life. Each process that holds leases keeps one key at the server,
    for 30 seconds at a time; the renewals of its leases are signs of life, too.

A process that has been silent for a shorter time was killed or stopped, or its host can't reach
the server. Its locks are *unknown*: it may come back.
"""

from .facts import (
    Counts,
    Ending,
    HolderInfo,
    Kind,
    LockInfo,
    NoteInfo,
    Page,
    Past,
    PastHolder,
    Progress,
    State,
    WaiterInfo,
)
from .inspector import Inspector, inspectors
from .listing import Listing

__all__ = [
    "Counts",
    "Ending",
    "HolderInfo",
    "Inspector",
    "Kind",
    "Listing",
    "LockInfo",
    "NoteInfo",
    "Page",
    "Past",
    "PastHolder",
    "Progress",
    "State",
    "WaiterInfo",
    "inspectors",
]
