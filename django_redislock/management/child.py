"""A program that we run, and the signals that come meanwhile.

All that happens, a signal, the program's end, a word from another thread, comes through one pipe
to one thread: nothing is lost between looking and sleeping, and nobody signals a process that has
been reaped, whose number may by then be another's.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

FROM_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these to its whole foreground."""
ENDING = (*FROM_TERMINAL, signal.SIGTERM)
"""Signals after which a program ends, unless it has other plans."""
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
NUDGE = 0
"""Another thread has something to say. No signal has this number."""

_LOOK = 0.05
"""Nobody tells when the last process of a group has ended; seconds after which to look again."""


class Interrupted(BaseException):
    """A signal came while there was no program yet to pass it on to."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Events:
    """The signals of this process, in the order in which they come. For the main thread."""

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        self._before: dict[int, Any] = {}
        self._raises = True

    def __enter__(self) -> Events:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._wakeup_before = signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
        try:
            for number in PASSED_ON:
                # What is ignored (nohup, the background of a script) stays so, here and in the
                # child.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._came)
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._came)
            # Whoever has started us may have blocked them: we would not see the program's end.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        except BaseException:  # a signal: one that was pending, or one that comes just now
            self.__exit__()
            raise
        _listening.add(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._leave()

    def _leave(self) -> None:
        self._raises = False
        _listening.discard(self)
        for number, handler in self._before.items():
            # None: one that was not installed by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._in.close()
        self._out.close()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # The interpreter has written it to the pipe already.
        if self._raises and number != signal.SIGCHLD:
            self._raises = False  # a second one must not cut short what the first one began
            raise Interrupted(number)

    @contextmanager
    def mask_as_given(self) -> Iterator[None]:
        """What is started here has those signals blocked that we were started with.

        The mask is ours for a moment, since a preexec_fn is not safe beside other threads.
        """
        ours = signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ours)

    def collect(self) -> None:
        """From here on they wait for `next()`, and raise no more."""
        self._raises = False

    def nudge(self, *_: object) -> None:
        """Let `next()` return. From any thread."""
        with suppress(OSError):  # it is full, and returns anyway; or it is closed and all over
            self._in.send(bytes([NUDGE]))

    def next(self, until: float | None = None) -> int | None:
        """The next signal, or `NUDGE`; None when it is `until`, on the monotonic clock."""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            # And not select(), which knows the first 1024 descriptors of a process only.
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if poll.poll(None if left is None else math.ceil(left * 1000)):
                return self._out.recv(1)[0]
            if left == 0:
                return None

    def leave_to_parent(self) -> None:
        """In a forked child: from here on its signals are its own."""
        self._leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


_listening: set[Events] = set()
_forking = threading.local()


def _before_fork() -> None:
    # Through the pipe that a child shares with us, its signals would be ours: until it has left
    # that, it gets none.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON if _listening else ())


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    for events in _listening.copy():
        events.leave_to_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


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
