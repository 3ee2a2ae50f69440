"""The clock that leases and waits are measured on: seconds that nobody sets."""

import time

# CLOCK_BOOTTIME goes on while the machine sleeps, as the server's clock does. With
# time.monotonic() a laptop that slept through its lease would wake up believing in it.
# macOS has no such clock, but its monotonic one there stops too, so CLOCK_MONOTONIC_RAW
# gains nothing; we take what Python offers.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some fixed moment; only differences mean anything."""
    return time.clock_gettime(_CLOCK)


def deadline(sent: float, ttl: float) -> float:
    """Until when to believe in a lease of `ttl` seconds that was asked for at `sent`.

    The server began to count later than `sent`. The margin is for its clock running faster
    than ours, and for its rounding to milliseconds: Redlock's drift.
    """
    return sent + ttl - (ttl * 0.01 + 0.002)
