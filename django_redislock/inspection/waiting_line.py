"""A line of a terminal that is written anew in its place: for what a command waits, and how far
it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
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
from .inspector import inspector_of
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
    name, using = lock._keys().name, lock._policy().using
    owner, began = people.owner(people.holder()), monotonic()

    def text() -> str:
        its = inspector_of(using)
        found = its.get(name)
        if found is None:
            return ""
        since = found.holder.acquired_at
        parts = [
            f"Waiting for {name!r} for {duration(monotonic() - began)}: held by {holder(found)}",
            f" ({found.holder.label})" if found.holder.label else "",
            f" since {instant(since)}" if since else "",
        ]
        waiters = its.waiters(name, min(found.waiters, 1000)) if found.waiters > 1 else []
        places = [one.owner for one in waiters if one.alive]
        if before := places.index(owner) if owner in places else 0:
            parts.append(f"; {count(before, 'waiter')} before us")
        return clean("".join(parts))

    return _shown(stderr, text, AFTER, "redislock-waiting-line")


def progress_line(
    lease: Lease, stderr: Any, *, quiet: bool = False
) -> AbstractContextManager[None]:
    """Say on a terminal how far the work of the block is, as its notes say it. No request is
    sent."""
    if quiet or not stderr.isatty():
        return nullcontext()
    since, noted, noted_us = datetime.now(UTC), "", 0

    def text() -> str:
        nonlocal noted, noted_us
        notes, now_us = lease._lifetime.notes, time_ns() // 1000
        if notes is None:
            return ""
        if notes.present != noted:
            noted, noted_us = notes.present, now_us
        note = Note.read(f"|0|0|{noted_us}|{noted}".encode(), whole=False)
        return str((note and progress(note, since, now_us)) or "")

    return _shown(stderr, text, EVERY, "redislock-progress-line")


@contextmanager
def _shown(stderr: Any, text: Callable[[], str], after: float, thread: str) -> Iterator[None]:
    """Show a text again and again while the block runs; "": there is none yet."""
    line, over, writing = TerminalLine(stderr), threading.Event(), rlock()

    def run() -> None:
        every, shown = after, ""
        while not over.wait(every):
            every = EVERY
            # Whatever is wrong, the wait itself finds out.
            with suppress(LockError):
                new = text()
                with writing:
                    if new not in ("", shown) and not over.is_set():
                        line.show(shown := new)
                        if not line.terminal:
                            return

    background.start(run, thread)  # or there is no line
    try:
        yield
    finally:
        with writing:
            over.set()
            line.erase()
