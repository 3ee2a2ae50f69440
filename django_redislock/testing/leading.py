"""A leader on demand, for the tests of projects."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ..leader import Leader, _Part
from .stubs import Condition

_fences = itertools.count(1)


def leading(leader: Leader) -> Condition[Leader]:
    """Let `leader` lead at once, without a server and without a thread.

    `on_gain` is called when the block begins, and `on_loss` when it ends; what they raise is
    raised. After `step_down()` it leads no more.
    """
    if not isinstance(leader, Leader):
        raise TypeError(f"leader must be a Leader, not {leader!r}")
    return Condition(lambda: _leading(leader))


@contextmanager
def _leading(leader: Leader) -> Iterator[Leader]:
    part = _Part(leader, None)
    lease: Any = SimpleNamespace(remaining=lambda: 1.0, fencing_token=next(_fences))
    part.lease = lease
    with mock.patch.object(leader, "_part", part):
        _call(leader._on_gain)
        try:
            yield leader
        finally:
            part.end()
            _call(leader._on_loss)


def _call(callback: Callable[[], object] | None) -> None:
    result: Any = callback() if callback is not None else None
    if asyncio.iscoroutine(result):  # the test may run in an event loop
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, result).result()
