"""Cancels a task at each of its suspensions, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator
from typing import Any


class CancelledAt:
    """Runs `coroutine`, and cancels the task that does so at the suspensions with these numbers.

    A suspension is a moment at which the task gives way to others: the only moments at which
    asyncio cancels one.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], numbers: Collection[int]) -> None:
        self._coroutine = coroutine
        self._numbers = numbers
        self.suspensions = 0

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step, value = self._coroutine.send, None
        while True:
            try:
                waits_for = step(value)
            except StopIteration as done:
                return done.value
            self.suspensions += 1
            if self.suspensions in self._numbers:
                task.cancel()
            step = self._coroutine.send
            try:
                value = yield waits_for
            except BaseException as error:
                step, value = self._coroutine.throw, error
