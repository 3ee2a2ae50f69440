"""Threads of the background: one that is started when it first has work, and the one that calls
the receivers of what happens there.

A process may have reached its limit of threads, or be about to end (from Python 3.12 on no thread
can be started then), or run us where threads are not allowed. No lock fails for that. Whoever
wants a thread learns that there is none, and has a way without one:

* A lease is not renewed. It ends with its ttl, and is not written down for lists.
* A waiter gets no message, and asks by itself.
* A release that is owed is left to the ttl, or is done at the end of the process.
* A call, such as that of a receiver or a callback, is made where the event is found out.

The next one who wants the thread tries again to start it, and it then goes on with all of that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from django.db import close_old_connections

from . import process
from .process import by_a_handler

logger = logging.getLogger("django_redislock")

AT_EXIT = 2.0
"""Seconds that the end of the process waits for calls that are still to be made."""


_unstarted: set[str] = set()
"""The name of the first thread that could not be started, since one could."""


def start(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a thread. Return None if none can be started now."""
    try:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if by_a_handler(error):
            raise
        if not _unstarted:
            _unstarted.add(name)
            logger.warning(
                "No thread can be started (%s). Until one can, leases are not renewed and end "
                "with their ttl, waiting locks ask about once a second, and receivers and "
                "callbacks are called in the thread that finds out about an event.",
                str(error) or type(error).__name__,
            )
        return None
    _unstarted.clear()
    return thread


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

    def start(self) -> bool:
        """Start the thread, unless it runs. Return False if it can't be started now.

        A finalizer or a signal handler may call this: it never waits. If an exception of a signal
        handler interrupts it, the next call starts the thread.
        """
        # Another call is starting it, perhaps in this very thread, interrupted by this call. A
        # lock can't guard this: an exception just after its acquire would leave it locked.
        if self._thread or self._starting:
            return True
        self._starting = True
        try:
            thread = start(self._run, self._name)
            if thread is not None:  # it may not run yet
                self._thread.setdefault("works", thread)
        finally:
            self._starting = False
        return thread is not None

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
        if not self._background.start():
            with contextlib.suppress(queue.Empty):
                while True:
                    _make(self._queue.get_nowait())

    def settle(self) -> None:
        if self._background.started:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait(AT_EXIT)

    def _run(self) -> None:
        while True:
            _make(self._queue.get())
            # As Django does after a request: a receiver may have used the database.
            _make(close_old_connections)


def _make(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("A call in the background failed")


_of_this_process: dict[str, Calls] = {}
"""The calls of this process, once there was one."""


def later(call: Callable[[], object]) -> None:
    """Make a call in the background, after all calls before it, without waiting for it."""
    process.notice_fork()
    # Two threads may each make a `Calls`, but both use the one that was stored first.
    calls = _of_this_process.get("") or _of_this_process.setdefault("", Calls())
    calls.add(call)


def settle() -> None:
    """Wait until all calls have been made, for `AT_EXIT` at most."""
    process.notice_fork()
    for calls in _of_this_process.values():
        calls.settle()


process.in_child(_of_this_process.clear)  # the thread stayed in the parent
process.in_child(_unstarted.clear)
atexit.register(settle)
