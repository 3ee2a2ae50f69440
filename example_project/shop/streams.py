"""Content that is made while it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from .models import Product

AT_ONCE = 1000


def labels(product: Product) -> Iterator[str]:
    """A line of CSV for each unit in stock."""
    yield "product,unit\n"
    for first in range(1, product.stock + 1, AT_ONCE):
        units = range(first, min(first + AT_ONCE, product.stock + 1))
        yield "".join(f"{product.pk},{unit}\n" for unit in units)


async def for_asgi(parts: Iterator[str]) -> AsyncIterator[str]:
    """The same parts. Of a plain iterator Django would collect all of them before it sends one."""
    for part in parts:
        yield part
        # Or the event loop could not do anything else: it would not even hear that the client has
        # gone away, and the lock would be held for as long as there are parts.
        await asyncio.sleep(0)
