"""A thread that is started when there is something for it to do, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs `work`, which never ends, in a thread of its own."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._name = name
        self._thread: dict[str, threading.Thread] = {}
        """The one that works, if any does."""
        self._starting = threading.Lock()

    @property
    def started(self) -> bool:
        return bool(self._thread)

    def start(self) -> None:
        """Start it, unless it runs. May be called from a finalizer: it waits for nobody."""
        # If it is taken, somebody else starts it, perhaps this very thread, which a finalizer
        # interrupts.
        if not self._thread and self._starting.acquire(blocking=False):
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            finally:
                self._starting.release()

    def _run(self) -> None:
        me = threading.current_thread()
        # Another one may run already, whose start was interrupted by a signal's exception.
        if self._thread.setdefault("works", me) is me:
            self._work()
