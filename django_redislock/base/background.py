"""Threads of the background: one that is started when it first has work, and the one that calls
the receivers of what happens there."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable

from django.db import close_old_connections

from . import fork

logger = logging.getLogger("django_redislock")

AT_EXIT = 2.0
"""Seconds that the end of the process waits for calls that are still to be made."""


class Background:
    """Runs `work`, which never ends, in a thread of its own."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._name = name
        self._thread: dict[str, threading.Thread] = {}
        """The thread that works, if any does."""
        self._starting = False

    @property
    def started(self) -> bool:
        return bool(self._thread)

    def start(self) -> None:
        """Start the thread, unless it runs.

        A finalizer or a signal handler may call this: it never waits. If an exception of a signal
        handler interrupts it, the next call starts the thread.
        """
        # Another call is starting it, perhaps in this very thread, interrupted by this call. A
        # lock can't guard this: an exception just after its acquire would leave it locked.
        if self._thread or self._starting:
            return
        self._starting = True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        finally:
            self._starting = False

    def _run(self) -> None:
        me = threading.current_thread()
        # Another thread may run already, if a signal's exception interrupted its start.
        if self._thread.setdefault("works", me) is me:
            self._work()


class Calls:
    """Makes calls in a thread of its own, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._background = Background(self._run, "redislock-signals")

    def add(self, call: Callable[[], object]) -> None:
        self._queue.put(call)
        self._background.start()

    def settle(self) -> None:
        if self._background.started:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait(AT_EXIT)

    def _run(self) -> None:
        while True:
            call = self._queue.get()
            try:
                call()
                # As Django does after a request: a receiver may have used the database.
                close_old_connections()
            except Exception:
                logger.exception("A call in the background failed")


_of_this_process: dict[str, Calls] = {}
"""The calls of this process, once there was one."""


def later(call: Callable[[], object]) -> None:
    """Make a call in the background, after all calls before it, without waiting for it."""
    fork.look()
    # Two threads may each make a `Calls`, but both use the one that was stored first.
    calls = _of_this_process.get("") or _of_this_process.setdefault("", Calls())
    calls.add(call)


def settle() -> None:
    """Wait until all calls have been made, for `AT_EXIT` at most."""
    fork.look()
    for calls in _of_this_process.values():
        calls.settle()


fork.in_child(_of_this_process.clear)  # the thread stayed in the parent
atexit.register(settle)
