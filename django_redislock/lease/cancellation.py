"""`cancel_on_lost`: the task that holds a lost lease is cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger("django_redislock")


class Cancellation:
    """Cancels the task that holds a lease when it is lost, as asyncio.timeout() does."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._loop = task.get_loop()
        self._task = task
        self._before = task.cancelling()
        self._over = False
        self._delivered = False

    def request(self) -> None:
        """Cancel the task. Any thread may call this."""
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            logger.debug("The event loop of a lost lease is closed already.")

    def _deliver(self) -> None:
        # This runs in the thread of the loop. A block that was left meanwhile is not cancelled.
        if not self._over and not self._delivered:
            self._delivered = True
            self._task.cancel("the lease was lost")

    def disarm(self) -> None:
        """Cancel nothing from now on, since the block is left."""
        self._over = True

    def finish(self, error: BaseException | None) -> bool:
        """Leave the block with `error`. Return whether this cancellation has ended it."""
        self.disarm()
        if not self._delivered:
            return False
        ours = self._task.uncancel() <= self._before
        return ours and isinstance(error, asyncio.CancelledError)
