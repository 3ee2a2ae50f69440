"""The thread that tells what came to light in the background, one event after the other."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable

from django.db import close_old_connections

from . import fork
from .background import Background

logger = logging.getLogger("django_redislock")

LAST_WORDS = 2.0
"""Seconds that the end of the process waits for what is still to be told."""


class _Messenger:
    def __init__(self) -> None:
        self._to_tell: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._background = Background(self._run, "redislock-signals")

    def take(self, tell: Callable[[], object]) -> None:
        self._to_tell.put(tell)
        self._background.start()

    def settle(self) -> None:
        if self._background.started:
            told = threading.Event()
            self._to_tell.put(told.set)
            told.wait(LAST_WORDS)

    def _run(self) -> None:
        while True:
            tell = self._to_tell.get()
            try:
                tell()
                # As after a request: a receiver may have used the database.
                close_old_connections()
            except Exception:
                logger.exception("What came to light in the background could not be told")


_of_this_process: dict[str, _Messenger] = {}
"""The one that is there, if anything was to be told."""


def later(tell: Callable[[], object]) -> None:
    """Call it in a thread that nobody waits for, after all that came before it."""
    fork.look()
    # Two threads may make one each, but both get the one that was first.
    messenger = _of_this_process.get("") or _of_this_process.setdefault("", _Messenger())
    messenger.take(tell)


def settle() -> None:
    """Wait until all that was to be told has been, but not for ever."""
    fork.look()
    for messenger in _of_this_process.values():
        messenger.settle()


fork.in_child(_of_this_process.clear)  # the thread stayed in the parent
atexit.register(settle)
