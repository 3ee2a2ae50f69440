"""A program that we run, and to which we pass on the signals that come to us.

One thread does that and reaps it, so nobody signals a process that has been reaped, whose number
may by then be another's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from .events import ENDING, FROM_TERMINAL, PASSED_ON, Events

_LOOK = 0.05
"""Nobody tells when the last process of a group has ended; seconds after which to look again."""


class Child:
    """The program.

    It gets a process group of its own, so that signals reach what it has started, too. Not in
    the foreground of a terminal, where another group could not read what is typed; there, what is
    typed (Ctrl-C) reaches it without us.
    """

    def __init__(
        self, program: Sequence[str], env: Mapping[str, str], tell: Callable[[str], object]
    ) -> None:
        self._tell = tell
        self._grouped = not _in_foreground()
        self._process = subprocess.Popen(
            program, env=env, process_group=0 if self._grouped else None
        )

    def poll(self) -> int | None:
        """Its exit code, as a shell would say it; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def pass_on(self, number: int) -> None:
        """A signal that came to us."""
        if not self._grouped and number in FROM_TERMINAL:
            return
        if number in ENDING:
            self._wake_to(number)
        else:
            self._send(number)

    def end(self, events: Events, kill_after: float) -> int:
        """End it, and what it has started: SIGTERM, and SIGKILL after so many seconds."""
        kill_at: float | None = time.monotonic() + kill_after
        self._wake_to(signal.SIGTERM)
        while (code := self.poll()) is None:
            event = events.next(kill_at)
            if event is None:
                self._send(signal.SIGKILL)
                kill_at = None
            elif event in PASSED_ON:
                self.pass_on(event)
        if self._grouped and kill_at is not None:
            self._end_group(events, kill_at)
        return code

    def _wake_to(self, number: int) -> None:
        # One that is stopped, such as by reading a terminal in its background, could not end; and
        # its lock would be renewed for ever.
        self._send(number, signal.SIGCONT)

    def _send(self, *numbers: int) -> None:
        if self._process.returncode is not None:
            return
        try:
            for number in numbers:
                self._kill(number)
        except ProcessLookupError:
            pass
        except PermissionError:
            if self.poll() is None:  # or it has ended: macOS says so, too
                name = signal.Signals(numbers[0]).name
                self._tell(f"The program can't be sent {name}: it runs as another user.")

    def _kill(self, number: int) -> None:
        kill: Callable[[int, int], None] = os.killpg if self._grouped else os.kill
        kill(self._process.pid, number)

    def _end_group(self, events: Events, kill_at: float) -> None:
        try:
            # The group's number isn't given away as long as it has members.
            while time.monotonic() < kill_at:
                self._kill(0)
                events.next(min(kill_at, time.monotonic() + _LOOK))
            self._kill(signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left, or nobody of ours


def _in_foreground() -> bool:
    """Whether a terminal's keyboard is ours now."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
