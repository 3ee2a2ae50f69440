"""A line of a terminal that is written anew in its place: for what a command waits, and how far
it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from time import monotonic, time_ns
from typing import Any

from ..base import background, people
from ..base.exceptions import LockError
from ..base.process import rlock
from ..lease.lease import Lease
from ..lease.lock import Lock
from ..primitives.note import Note
from . import Inspector
from .inspector import RedlockInspector, inspector_of
from .reading import progress
from .story import holder
from .words import clean, count, duration, instant

_ERASE = "\r\x1b[2K"


class TerminalLine:
    """The last line of a terminal. `stderr` is that of a Django command."""

    def __init__(self, stderr: Any) -> None:
        self._stderr = stderr
        self.terminal = bool(stderr.isatty())
        self._shown = False

    def show(self, text: str) -> None:
        """Write the line over the last one. Into a log, it is written as a line of its own."""
        if self.terminal:
            room = shutil.get_terminal_size().columns - 1
            text = text if len(text) <= room else f"{text[: room - 1]}…"
            self._write(f"{_ERASE}{text}")
        else:
            self._write(f"{text}\n")
        self._shown = True

    def erase(self) -> None:
        """Make room for the output of others."""
        if self._shown and self.terminal:
            self._write(_ERASE)
        self._shown = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # closed, or a broken pipe
            self._stderr.write(text, str, ending="")  # Django would paint it red
            self._stderr.flush()


AFTER = 2.0
"""Seconds of waiting before the line appears."""
EVERY = 1.0
"""Seconds between two looks, on a terminal. In a log there is one line."""


def waiting_line(lock: Lock, stderr: Any, *, quiet: bool = False) -> AbstractContextManager[None]:
    """Say on stderr, while the block waits for `lock`, who holds it and how many are before us.

    A thread of its own looks, so that the wait itself is as without it. Nobody waits for that
    thread: a server that hangs must not delay the work of a lock that is held.
    """
    if quiet or lock._policy().wait == 0:
        return nullcontext()
    return _Waiting(stderr, AFTER, lock).running("redislock-waiting-line")


def progress_line(
    lease: Lease, stderr: Any, *, quiet: bool = False
) -> AbstractContextManager[None]:
    """Say on a terminal how far the work of the block is, as its notes say it. No request is
    sent."""
    if quiet or not stderr.isatty():
        return nullcontext()
    return _Working(stderr, EVERY, lease).running("redislock-progress-line")


class _Line:
    def __init__(self, stderr: Any, after: float) -> None:
        self._line = TerminalLine(stderr)
        self._after = after
        self._over = threading.Event()
        self._writing = rlock()
        self._began = monotonic()

    @contextmanager
    def running(self, thread: str) -> Iterator[None]:
        background.start(self.run, thread)  # or there is no line
        try:
            yield
        finally:
            with self._writing:
                self._over.set()
                self._line.erase()

    def run(self) -> None:
        every, shown = self._after, ""
        while not self._over.wait(every):
            every = EVERY
            # Whatever is wrong, the wait itself finds out.
            with suppress(LockError):
                text = self._text()
                with self._writing:
                    if text not in ("", shown) and not self._over.is_set():
                        self._line.show(shown := text)
                        if not self._line.terminal:
                            return

    def _text(self) -> str:
        """Return the line; "": there is none."""
        raise NotImplementedError


class _Working(_Line):
    def __init__(self, stderr: Any, after: float, lease: Lease) -> None:
        super().__init__(stderr, after)
        self._lifetime = lease._lifetime
        self._since = datetime.now(UTC)
        self._noted, self._noted_us = "", 0

    def _text(self) -> str:
        notes, now_us = self._lifetime.notes, time_ns() // 1000
        if notes is None:
            return ""
        if notes.present != self._noted:
            self._noted, self._noted_us = notes.present, now_us
        note = Note.read(f"|0|0|{self._noted_us}|{self._noted}".encode(), whole=False)
        return str((note and progress(note, self._since, now_us)) or "")


class _Waiting(_Line):
    def __init__(self, stderr: Any, after: float, lock: Lock) -> None:
        super().__init__(stderr, after)
        self._name_of_lock = lock._keys().name
        self._using = lock._policy().using
        self._owner = people.owner(people.holder())

    def _text(self) -> str:
        its = inspector_of(self._using)
        lock = its.get(self._name_of_lock)
        if lock is None:
            return ""
        since = lock.holder.acquired_at
        parts = [
            f"Waiting for {self._name_of_lock!r} for {duration(monotonic() - self._began)}: ",
            f"held by {holder(lock)}",
            f" ({lock.holder.label})" if lock.holder.label else "",
            f" since {instant(since)}" if since else "",
            self._before_us(its, lock.waiters),
        ]
        return clean("".join(parts))

    def _before_us(self, its: Inspector | RedlockInspector, number: int) -> str:
        waiters = its.waiters(self._name_of_lock, min(number, 1000)) if number > 1 else []
        places = [one.owner for one in waiters if one.alive]
        before = places.index(self._owner) if self._owner in places else 0
        return f"; {count(before, 'waiter')} before us" if before else ""
