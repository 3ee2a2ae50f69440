"""The connections of event loops: one for each server and each loop. It is closed with the loop.

A connection belongs to the loop that opened it, and Django makes loops freely: `async_to_sync` and
`asyncio.run` may make one per request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from ..base.clock import now
from ..primitives.waiting import LINE
from . import pools
from .server import Server, every

CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a loop waits for commands that are under way."""

_inherited: list[object] = []

ending: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The loops that close their asynchronous generators."""


class OfLoop:
    """The objects that all tasks of one loop share for one server."""

    def __init__(self, loops: EventLoops, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.loop = loop
        self.pool = server.async_pool()
        self.line = asyncio.Semaphore(LINE)
        """The line in which tasks that wait for locks stand."""
        self.busy = 0
        """How many commands are under way."""
        self.closer = self._close_at_end(loops)

    async def _close_at_end(self, loops: EventLoops) -> AsyncGenerator[None]:
        """Close the connections when their loop ends.

        A loop has no hook for that, but it closes the asynchronous generators that were begun
        in it (`shutdown_asyncgens`, which asyncio.run, asgiref and ASGI servers call).
        """
        try:
            yield
        finally:
            ending.add(self.loop)
            loops.open.pop(self.loop, None)
            give_up = now() + CLOSE_TIMEOUT
            while self.busy and now() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # an event would cost time with each command
            await pools.aclose(self.pool)


class EventLoops:
    """The event loops of this process that use one server."""

    def __init__(self, _: Server) -> None:
        self.open: dict[asyncio.AbstractEventLoop, OfLoop] = {}

    def left_behind(self) -> None:
        """Keep the connections, in a forked child. Otherwise they would be closed, which takes
        their sockets out of the epoll that the child shares with its parent."""
        _inherited.append(self.open)

    async def join(self, loop: asyncio.AbstractEventLoop, server: Server) -> OfLoop:
        """Make the objects that the tasks of `loop` share. `server` has the settings."""
        _drop_closed()
        its = self.open[loop] = OfLoop(self, loop, server)
        await anext(its.closer)
        return its


def joined(loop: asyncio.AbstractEventLoop, server: Server) -> OfLoop | None:
    """Return `of_loop`, if it is there already."""
    return server.kept(EventLoops).open.get(loop)


async def of_loop(loop: asyncio.AbstractEventLoop, server: Server) -> OfLoop:
    """Return the objects that the tasks of a loop share for a server."""
    loops = server.kept(EventLoops)
    return loops.open.get(loop) or await loops.join(loop, server)


def opened() -> list[OfLoop]:
    """Return the objects of all loops for all servers."""
    return [its for loops in every(EventLoops) for its in loops.open.copy().values()]


def _drop_closed() -> None:
    """Forget loops that were closed without `shutdown_asyncgens`. Their sockets go with the
    transports."""
    for loops in every(EventLoops):
        for loop in [loop for loop in list(loops.open) if loop.is_closed()]:
            loops.open.pop(loop, None)
