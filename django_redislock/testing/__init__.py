"""Tools for the tests of projects that use locks: docs/testing.md explains them.

Nothing here is used outside of tests. For the time of a test and in this process, a tool replaces
how the package finds a server, how it asks the server, or which time it is.
"""

from .assertions import (
    assert_claimed,
    assert_held,
    assert_locked,
    assert_noted,
    assert_parked,
    check_lock_order,
    lose_lease,
    tasks_coalesced,
)
from .stubs import (
    Memory,
    leading,
    locks_always_busy,
    locks_always_free,
    locks_held_elsewhere,
    locks_in_memory,
    names_apart,
    redis_unavailable,
)

__all__ = [
    "Memory",
    "assert_claimed",
    "assert_held",
    "assert_locked",
    "assert_noted",
    "assert_parked",
    "check_lock_order",
    "leading",
    "locks_always_busy",
    "locks_always_free",
    "locks_held_elsewhere",
    "locks_in_memory",
    "lose_lease",
    "names_apart",
    "redis_unavailable",
    "tasks_coalesced",
]
