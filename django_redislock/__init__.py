"""Distributed locks for Django on Redis."""

from typing import TYPE_CHECKING

from .base.exceptions import (
    ComputationFailed,
    EarlyReleaseWarning,
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockOrderError,
    LockOrderWarning,
    LockReentered,
    LockUnavailable,
    StaleLease,
    StaleRead,
    TooManyResumptions,
)
from .base.people import Holder
from .lease.lease import Lease
from .lease.lifetime import LeaseState
from .lease.order import current_lease, held
from .locks.once import ainitialise, deduplicate, initialise, once
from .locks.redis_lock import (
    MultiLock,
    ReadWriteLock,
    Redlock,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from .locks.single_flight import single_flight

__all__ = [
    "ComputationFailed",
    "EarlyReleaseWarning",
    "Holder",
    "Lease",
    "LeaseLost",
    "LeaseRevoked",
    "LeaseState",
    "LockError",
    "LockNotAcquired",
    "LockOrderError",
    "LockOrderWarning",
    "LockReentered",
    "LockUnavailable",
    "MultiLock",
    "ReadWriteLock",
    "Redlock",
    "Semaphore",
    "StaleLease",
    "StaleRead",
    "TimestampLock",
    "TooManyResumptions",
    "ainitialise",
    "current_lease",
    "deduplicate",
    "held",
    "initialise",
    "once",
    "redis_lock",
    "single_flight",
]

__version__ = "0.1.0.dev0"

_ELSEWHERE = {
    "cache": "RedisCache",
    "client": "Lock Locking LockingClient SentinelLockingClient",
    "cluster": "ClusterConnectionFactory OneAddressConnectionFactory",
    "commands": "LockedCommand",
    "fencing": "FencedManager FencedModel FencedQuerySet FencingTokenField",
    "inspection": "Counts Ending HolderInfo Inspector Kind Listing LockInfo NoteInfo Page Past "
    "PastHolder Progress State WaiterInfo inspectors",
    "leader": "Leader serves",
    "periodic": "JobInfo JobState Ledger Pause RunInfo RunOutcome RunRequest job_finished "
    "job_started",
    "signals": "LockEvent lock_acquired lock_cleared lock_lost lock_not_acquired lock_released "
    "lock_unknown lock_unlocked",
    "testing": "Memory assert_claimed assert_held assert_locked assert_noted assert_parked "
    "check_lock_order leading locks_always_busy locks_always_free locks_in_memory lose_lease "
    "names_apart redis_unavailable tasks_coalesced",
    "views": "idempotent_view lock_view",
}
"""Public names of other modules, which are not imported here: most of them need the settings."""

if not TYPE_CHECKING:  # type checkers should report names that don't exist

    def __getattr__(name: str) -> object:
        for module, names in _ELSEWHERE.items():
            if name in names.split():
                path = f"{__name__}.{module}"
                raise ImportError(f"'{name}' is in {path}: write from {path} import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
