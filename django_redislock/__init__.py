"""Distributed locks for Django on Redis."""

from .decorators import redis_lock
from .exceptions import (
    Holder,
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
)
from .lease import Lease, LeaseState, current_lease

__all__ = [
    "Holder",
    "Lease",
    "LeaseLost",
    "LeaseRevoked",
    "LeaseState",
    "LockError",
    "LockNotAcquired",
    "LockReentered",
    "LockUnavailable",
    "current_lease",
    "redis_lock",
]

__version__ = "0.1.0.dev0"
