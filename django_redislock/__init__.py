"""Distributed locks for Django on Redis."""

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
)
from .base.holder import Holder
from .lease.current import current_lease, held
from .lease.lease import Lease
from .lease.lifetime import LeaseState
from .locks.initialise import ainitialise, initialise
from .locks.multi_lock import MultiLock
from .locks.once import deduplicate, once
from .locks.other_kinds import ReadWriteLock, Redlock, Semaphore, TimestampLock
from .locks.redis_lock import redis_lock
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
