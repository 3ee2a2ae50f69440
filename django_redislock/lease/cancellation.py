"""What `cancel_on_lost` does."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger("django_redislock")


class Cancellation:
    """Cancels the task that holds a lease when it is lost, as asyncio.timeout() does."""

    def __init__(self, task: asyncio.Task[Any], *, depth: int) -> None:
        self.depth = depth
        """It ends when fewer blocks than that hold the lease."""
        self._loop = task.get_loop()
        self._task = task
        self._before = task.cancelling()
        self._over = False
        self._delivered = False

    def request(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            logger.debug("The event loop of a lost lease is closed already.")

    def _deliver(self) -> None:
        # In the loop's thread, so that a block that was left meanwhile isn't cancelled.
        if not self._over and not self._delivered:
            self._delivered = True
            self._task.cancel("the lease was lost")

    def disarm(self) -> None:
        """The block is left: whatever is learnt from now on, cancel nothing."""
        self._over = True

    def finish(self, error: BaseException | None) -> bool:
        """The block is left with `error`. True when our cancellation is what ended it."""
        self.disarm()
        if not self._delivered:
            return False
        ours = self._task.uncancel() <= self._before
        return ours and isinstance(error, asyncio.CancelledError)
