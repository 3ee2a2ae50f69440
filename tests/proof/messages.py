"""The messages of a task queue, as files: they outlive each process, and each server of locks.

A message comes again if the worker that has taken it is killed before it is done with it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from tests.tasks.by_hand import Message


class Messages:
    """Those that wait, and those that workers have taken."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting, self._taken = directory / "waiting", directory / "taken"
        for place in (self._waiting, self._taken):
            place.mkdir(parents=True, exist_ok=True)

    def append(self, message: Message) -> None:
        """Add the last one. It is there whole or not at all."""
        name = f"{time.time_ns()} {message.id}"
        new = self._directory / name
        new.write_text(json.dumps(message), encoding="utf-8")
        new.rename(self._waiting / name)

    def take(self) -> Message | None:
        """Take the first one, until `done`."""
        for name in self.waiting():
            self._its = self._taken / f"{os.getpid()} {name}"
            with suppress(FileNotFoundError):  # another worker has it
                (self._waiting / name).rename(self._its)
                return Message(*json.loads(self._its.read_text(encoding="utf-8")))
        return None

    def done(self) -> None:
        """Forget the one that was taken."""
        self._its.unlink()

    def waiting(self) -> list[str]:
        """Return the names of those that wait, with those of killed workers."""
        for name in self.taken():
            pid, _, its = name.partition(" ")
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                with suppress(FileNotFoundError):
                    (self._taken / name).rename(self._waiting / its)
        return sorted(os.listdir(self._waiting))

    def taken(self) -> list[str]:
        """Return the names of those that workers have."""
        return os.listdir(self._taken)
