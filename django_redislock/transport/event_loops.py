"""What the tasks of an event loop share: for each server, a pool that is closed with the loop.

A connection belongs to the loop that opened it, and Django makes loops freely: `async_to_sync` and
`asyncio.run` may make one per request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from ..base import fork
from ..base.clock import now
from ..primitives.waiting import LINE
from . import server as connections


class Shared:
    """The pool that all tasks of a loop share for one server."""

    CLOSE_TIMEOUT = 5.0
    """Seconds that the end of a loop waits for commands that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, using: str) -> None:
        self.loop = loop
        self.address = connections.address(using)
        self.pool = connections.async_pool(using)
        self.line = asyncio.Semaphore(LINE)
        self.busy = 0
        self.keeper = self._keep()

    async def _keep(self) -> AsyncGenerator[None]:
        """Closes the pool when its loop ends.

        A loop has no hook for that, but it closes the asynchronous generators that were begun
        in it (`shutdown_asyncgens`, which asyncio.run, asgiref and ASGI servers call).
        """
        try:
            yield
        finally:
            ending.add(self.loop)
            pools = loops.get(self.loop, {})
            pools.pop(self.address, None)
            if not pools:
                loops.pop(self.loop, None)
            give_up = now() + self.CLOSE_TIMEOUT
            while self.busy and now() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # an event would cost each command
            await connections.aclose(self.pool)


loops: dict[asyncio.AbstractEventLoop, dict[str, Shared]] = {}
ending: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


async def shared(loop: asyncio.AbstractEventLoop, using: str) -> Shared:
    """What they share for the server of `using`."""
    pools = loops.get(loop)
    if pools is None:
        for closed in [other for other in list(loops) if other.is_closed()]:
            # Closed without shutdown_asyncgens; its sockets go with the transports.
            loops.pop(closed, None)
        pools = loops.setdefault(loop, {})
    found = pools.get(connections.address(using))
    if found is None:
        found = Shared(loop, using)
        pools[found.address] = found
        await anext(found.keeper)
    return found


fork.in_child(loops.clear)
