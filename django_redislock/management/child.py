"""A program that we run, and that gets the signals that we receive.

One thread sends the signals and reaps the program. So no signal goes to a process that has been
reaped and whose number may belong to another process by then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from .events import ENDING, FROM_TERMINAL, PASSED_ON, Events

_LOOK = 0.05
"""Seconds between two looks at a process group: its end sends no signal."""


class Child:
    """The program.

    It gets a process group of its own, so that signals also reach the processes that it starts. In
    the foreground of a terminal it stays in our group: another group could not read from the
    keyboard, and Ctrl-C reaches our group without us.
    """

    def __init__(
        self, program: Sequence[str], env: Mapping[str, str], write: Callable[[str], object]
    ) -> None:
        self._write = write
        self._grouped = not _in_foreground()
        self._process = subprocess.Popen(
            program, env=env, process_group=0 if self._grouped else None
        )

    def poll(self) -> int | None:
        """Return its exit code, as a shell has it; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def pass_on(self, number: int) -> None:
        """Pass on a signal that we received."""
        if not self._grouped and number in FROM_TERMINAL:
            return
        if number in ENDING:
            self._wake_to(number)
        else:
            self._send(number)

    def end(self, events: Events, kill_after: float) -> int:
        """End it and the processes that it started: SIGTERM, then SIGKILL after `kill_after`
        seconds."""
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
        # A stopped program, such as one that reads a terminal from the background, could not end,
        # and its lock would be renewed without end.
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
            if self.poll() is None:  # macOS also raises this for an ended process
                name = signal.Signals(numbers[0]).name
                self._write(f"The program can't be sent {name}: it runs as another user.")

    def _kill(self, number: int) -> None:
        kill: Callable[[int, int], None] = os.killpg if self._grouped else os.kill
        kill(self._process.pid, number)

    def _end_group(self, events: Events, kill_at: float) -> None:
        try:
            # The number of a group is not reused as long as the group has members.
            while time.monotonic() < kill_at:
                self._kill(0)
                events.next(min(kill_at, time.monotonic() + _LOOK))
            self._kill(signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or none that is ours


def _in_foreground() -> bool:
    """Say whether our process group is in the foreground of a terminal."""
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
