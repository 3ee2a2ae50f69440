"""External services for which the shop waits while it holds a lock: payment, a supplier.

The services are simulated: each is done after some seconds, or when a request says so. The request
may reach another process, so it is passed on through the cache.
"""

from __future__ import annotations

import asyncio
import time

from django.core.cache import cache

EVERY = 0.02


def report(event: str) -> None:
    """Report that an event has happened."""
    cache.set(event, 1, timeout=60)


def wait(event: str, seconds: float) -> None:
    """Return when the event has happened, or after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not cache.delete(event):
        time.sleep(EVERY)


async def await_(event: str, seconds: float) -> None:
    """`wait` for coroutines."""
    until = time.monotonic() + seconds
    # Another process may report the event, so an asyncio.Event is not enough.
    while time.monotonic() < until and not await cache.adelete(event):  # noqa: ASYNC110
        await asyncio.sleep(EVERY)
