"""`TimestampLock`: the lock of the old `SETNX` documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from .arguments import validate_flag
from .decorators import redis_lock
from .locks import Options


class TimestampLock(redis_lock):
    """A lock whose key says when it ends, for fleets whose old clients know no other.

    Its name is its key in Redis, verbatim, since that is how the old clients know it; a key that
    no name can have is given as `timestamp_key`. `fractions`: write fractions of a second, which
    clients that expect an integer can't read. Else it is used as `redis_lock`, and takes the same
    options.

    It has no queue and no fencing token: docs/timestamp-lock.md says what it promises, and what
    it doesn't. Raises what `redis_lock` does.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        fractions: bool = False,
        timestamp_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(name, timestamp_key=timestamp_key, **options)
        self._of_kind("timestamp")
        self._explicit["fractions"] = validate_flag(fractions, "fractions")
