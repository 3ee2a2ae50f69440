"""The clock that measures leases and waits. Setting the time of day does not change it."""

import time
from typing import Any

# CLOCK_BOOTTIME goes on while the machine sleeps, as the server's clock does. With
# time.monotonic() a laptop that slept through its lease would wake up believing in it.
# macOS has no such clock, but its monotonic one there stops too, so CLOCK_MONOTONIC_RAW
# gains nothing; we take what Python offers. Windows has none of these, and a counter that goes on.
_CLOCK: Any = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

if _CLOCK is None:

    def now() -> float:
        """Return seconds since some fixed moment. Only differences have a meaning."""
        return time.perf_counter()

else:

    def now() -> float:
        """Return seconds since some fixed moment. Only differences have a meaning."""
        return time.clock_gettime(_CLOCK)


DRIFT = 0.01
"""The part by which a server's clock may run faster than ours: Redlock's drift."""


def deadline(sent: float, ttl: float) -> float:
    """Return until when a lease of `ttl` seconds counts as held, if it was requested at `sent`.

    The server began to count after `sent`. The margin allows for a server clock that runs faster,
    and for its rounding to milliseconds.
    """
    return sent + ttl - (ttl * DRIFT + 0.002)
