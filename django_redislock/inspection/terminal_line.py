"""One line on a terminal that is written anew in its place."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any

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
