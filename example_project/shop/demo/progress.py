"""Show progress while it happens."""

from __future__ import annotations

import time

from django.core.management.base import OutputWrapper


class Progress:
    """One line that changes on a terminal; elsewhere a new line from time to time."""

    def __init__(self, stdout: OutputWrapper, every: float = 1.0) -> None:
        self._stdout = stdout
        self._every = every
        self._due = 0.0

    def show(self, text: str) -> None:
        """Show what is true right now."""
        if self._stdout.isatty():
            self._write(f"\r\x1b[K  {text}", ending="")
        elif time.monotonic() >= self._due:
            self._write(f"  {text}")

    def keep(self, text: str) -> None:
        """Show what stays true, instead of the last line."""
        self._write(f"\r\x1b[K{text}" if self._stdout.isatty() else text)

    def _write(self, text: str, ending: str = "\n") -> None:
        self._stdout.write(text, ending=ending)
        self._stdout.flush()
        self._due = time.monotonic() + self._every
