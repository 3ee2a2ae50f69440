"""The thread that tells what came to light in the background, one event after the other."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable

from django.db import close_old_connections

logger = logging.getLogger("django_redislock")

LAST_WORDS = 2.0
"""Seconds that the end of the process waits for what is still to be told."""


class _Messenger:
    def __init__(self) -> None:
        self._to_tell: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._started = False

    def take(self, tell: Callable[[], object]) -> None:
        self._to_tell.put(tell)
        with self._starting:
            if not self._started:
                threading.Thread(target=self._run, name="redislock-signals", daemon=True).start()
                self._started = True

    def settle(self) -> None:
        if self._started:
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


_messenger = _Messenger()


def later(tell: Callable[[], object]) -> None:
    """Call it in a thread that nobody waits for, after all that came before it."""
    _messenger.take(tell)


def settle() -> None:
    """Wait until all that was to be told has been, but not for ever."""
    _messenger.settle()


def _after_fork() -> None:
    global _messenger
    _messenger = _Messenger()  # the thread stayed in the parent


os.register_at_fork(after_in_child=_after_fork)
atexit.register(settle)
