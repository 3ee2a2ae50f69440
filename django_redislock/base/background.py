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
        self._starting = False

    @property
    def started(self) -> bool:
        return bool(self._thread)

    def start(self) -> None:
        """Start it, unless it runs. May be called from a finalizer or a signal's handler: it waits
        for nobody. After an exception of the latter, the next call starts it."""
        # Somebody else starts it, perhaps this very thread, which one of these interrupts. No lock
        # says so: an exception that comes when it is just taken would leave it taken.
        if self._thread or self._starting:
            return
        self._starting = True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        finally:
            self._starting = False

    def _run(self) -> None:
        me = threading.current_thread()
        # Another one may run already, whose start was interrupted by a signal's exception.
        if self._thread.setdefault("works", me) is me:
            self._work()
