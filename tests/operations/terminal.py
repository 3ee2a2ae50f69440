"""A terminal in which a command runs, and what a person sees there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence

from tests.manage import PROGRAM, environ
from tests.processes import ROOT
from tests.waiting import PATIENCE, eventually

OPENED = "\x1b[?1049h\x1b[?25l"
CLOSED = "\x1b[?25h\x1b[?1049l"


class Terminal:
    """The command on a terminal of its own."""

    def __init__(
        self,
        *arguments: str,
        program: Sequence[str] = (*PROGRAM, "redislock"),
        url: str = "",
        term: str = "xterm",
        lines: int = 12,
        columns: int = 72,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self._columns = columns
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            # Its size counts, and not that of a terminal around us.
            env={**environ(url), "TERM": term, "LINES": "", "COLUMNS": ""},
            start_new_session=True,
            # So that Ctrl-C, typed, is sent to it.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(theirs)
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end any more
                return
            if not data:
                return
            self.text += data.decode()

    def frames(self) -> list[str]:
        """What was drawn, one screen after the other, without colours."""
        drawn = re.sub(r"\x1b\[[\d;]*m", "", self.text.partition(CLOSED)[0])
        return drawn.split("\x1b[H")[1:]

    def picture(self) -> list[str]:
        """What a person sees: the last whole screen, as a terminal of this width draws it."""
        drawn = [frame for frame in self.frames() if frame.endswith("\x1b[J")][-1]
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|.", drawn):
            line = lines[-1]
            if part == "\x1b[K":
                # A terminal does not wrap before the next character comes: behind a full line the
                # cursor stands on its last character.
                lines[-1] = line[: min(column, self._columns - 1)]
            elif part == "\x1b[2K":
                lines[-1] = ""
            elif part == "\n":
                lines.append("")
            elif part == "\r":
                column = 0
            elif len(part) == 1:
                lines[-1] = (line + " " * column)[:column] + part
                column = min(column + 1, self._columns)
        return lines

    def shows(self, text: str) -> str:
        """Wait for a whole screen with that text."""
        return eventually(
            lambda: next((f for f in self.frames() if text in f and f.endswith("\x1b[J")), "")
        )

    def says(self, text: str) -> str:
        """Wait until this was written somewhere, and return all that was."""
        return eventually(lambda: self.text if text in self.text else "")

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ends(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        os.close(self._ours)
