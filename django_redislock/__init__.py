"""Distributed locks for Django on Redis."""

from .current import current_lease
from .decorators import redis_lock
from .exceptions import (
    EarlyReleaseWarning,
    FlightFailed,
    Holder,
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
from .flights import single_flight
from .lease import Lease, LeaseState
from .multi import MultiLock
from .only_once import deduplicate, once
from .other_kinds import ReadWriteLock, Redlock, Semaphore, TimestampLock
from .values import ainitialise, initialise

__all__ = [
    "EarlyReleaseWarning",
    "FlightFailed",
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
    "initialise",
    "once",
    "redis_lock",
    "single_flight",
]

__version__ = "0.1.0.dev0"
