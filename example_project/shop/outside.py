"""Others, for whom the shop waits while it holds a lock: a payment service, a supplier.

They are made up: each is done after some seconds, or when it says so, which comes as a request of
its own. Whatever process that one reaches, it is handed on through the cache.
"""

from __future__ import annotations

import asyncio
import time

from django.core.cache import cache

EVERY = 0.02


def tell(event: str) -> None:
    """It is done."""
    cache.set(event, 1, timeout=60)


def wait(event: str, seconds: float) -> None:
    """Return when it is done, or so many seconds have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not cache.delete(event):
        time.sleep(EVERY)


async def await_(event: str, seconds: float) -> None:
    """`wait` for coroutines."""
    until = time.monotonic() + seconds
    # It may be told to another process, so an asyncio.Event would not hear of it.
    while time.monotonic() < until and not await cache.adelete(event):  # noqa: ASYNC110
        await asyncio.sleep(EVERY)
