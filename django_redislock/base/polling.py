"""`select.poll`, also where Python has none, as on Windows."""

from __future__ import annotations

import select
from typing import Any


class Select:
    """Waits for sockets that can be read, as `select.poll` does. It knows no other events."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def register(self, file: Any, events: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if number < 0:
            raise ValueError("file descriptor cannot be a negative integer (-1)")
        self._files[number] = events

    def unregister(self, file: int) -> None:
        del self._files[file]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        seconds = None if milliseconds is None else milliseconds / 1000
        files = [file for file, events in self._files.items() if events]
        ready, _, _ = select.select(files, [], [], seconds)
        return [(file, POLLIN) for file in ready]


POLLIN: int = getattr(select, "POLLIN", 1)


def poll() -> Any:
    """Return a `select.poll()`."""
    # Looked up each time: gevent may replace it later.
    return getattr(select, "poll", Select)()
