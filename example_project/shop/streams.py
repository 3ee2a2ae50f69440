"""Responses whose content is made while it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from .models import Product

AT_ONCE = 1000


def labels(product: Product) -> Iterator[str]:
    """Yield a line of CSV for each unit in stock."""
    yield "product,unit\n"
    for first in range(1, product.stock + 1, AT_ONCE):
        units = range(first, min(first + AT_ONCE, product.stock + 1))
        yield "".join(f"{product.pk},{unit}\n" for unit in units)


async def for_asgi(parts: Iterator[str]) -> AsyncIterator[str]:
    """Yield the same parts. Django would collect a plain iterator before it sends any part."""
    for part in parts:
        yield part
        # Let the event loop do other work: otherwise it does not notice that the client has gone
        # away, and the lock is held as long as there are parts.
        await asyncio.sleep(0)
