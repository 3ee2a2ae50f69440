"""For the tests of projects that use locks: docs/testing.md tells how.

Nothing here is asked while a project runs. What a test wants to be otherwise is put in place of a
name of ours for as long as that test lasts, in this process: how a server is found, how it is
asked, what time it is.
"""

from .assertions import assert_held, assert_locked, check_lock_order, lose_lease
from .memory import Memory, locks_in_memory
from .own_prefix import names_apart
from .pretence import locks_always_busy, locks_always_free, redis_unavailable

__all__ = [
    "Memory",
    "assert_held",
    "assert_locked",
    "check_lock_order",
    "locks_always_busy",
    "locks_always_free",
    "locks_in_memory",
    "lose_lease",
    "names_apart",
    "redis_unavailable",
]
