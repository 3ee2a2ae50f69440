"""Events for the main thread: signals, the end of a child, a nudge from another thread.

All events come through one pipe, so that none is lost between a look and a sleep.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from ..base import polling
from ..base.process import Ended


def _there(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals that this system has. Windows has few of them."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


FROM_TERMINAL = _there("SIGHUP", "SIGINT", "SIGQUIT", "SIGBREAK")
"""Signals that a terminal sends to its whole foreground group."""
ENDING = (*FROM_TERMINAL, signal.SIGTERM)
"""Signals that end a program, unless it handles them."""
PASSED_ON = (*ENDING, *_there("SIGUSR1", "SIGUSR2"))
_CHILD = _there("SIGCHLD")
NUDGE = 0
"""The event of `Events.nudge`. No signal has this number."""


def _mask(how: str, signals: Iterable[int]) -> set[int]:
    """Change the signals that are blocked, and return those that were. Windows can block none."""
    if not hasattr(signal, "pthread_sigmask"):
        return set()
    return {*signal.pthread_sigmask(getattr(signal, f"SIG_{how}"), signals)}


class Events:
    """The signals of this process, in their order, for a command in the main thread."""

    def __init__(self, command: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise CommandError(
                f"{command} must be called in the main thread, which receives the signals."
            )
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        self._before: dict[int, Any] = {}
        self._raises = True

    def __enter__(self) -> Events:
        self._mask = _mask("BLOCK", ())
        self._wakeup_before = signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
        try:
            for number in PASSED_ON:
                # An ignored signal (nohup, the background of a script) stays ignored, here and in
                # the child.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._came)
            for number in _CHILD:
                self._before[number] = signal.signal(number, self._came)
            # Our parent may have blocked them: we would not notice the end of the program.
            _mask("UNBLOCK", self._before)
        except BaseException:  # of a signal that was pending, or that comes now
            self.__exit__()
            raise
        _listening.add(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _mask("SETMASK", self._mask)
        self._leave()

    def _leave(self) -> None:
        self._raises = False
        _listening.discard(self)
        for number, handler in self._before.items():
            # None: a handler that was not installed by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._in.close()
        self._out.close()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # The interpreter has already written the number to the pipe.
        if self._raises and number not in _CHILD:
            self._raises = False  # a second signal must not interrupt the cleanup after the first
            raise Ended(128 + number)

    @contextmanager
    def mask_as_given(self) -> Iterator[None]:
        """Restore the signal mask that we were started with, for a child that is started here.

        A `preexec_fn` that sets the mask in the child would not be safe beside other threads.
        """
        ours = _mask("SETMASK", self._mask)
        try:
            yield
        finally:
            _mask("SETMASK", ours)

    def collect(self) -> None:
        """From here on signals wait for `next()`; they raise no `Ended`."""
        self._raises = False

    def nudge(self, *_: object) -> None:
        """Make `next()` return. Callable from any thread."""
        with suppress(OSError):  # full: `next` returns anyway; closed: nobody waits
            self._in.send(bytes([NUDGE]))

    def next(self, until: float | None = None) -> int | None:
        """Return the next signal or `NUDGE`; None at the time `until`, on the monotonic clock."""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            # Not select(), which knows only the first 1024 descriptors of a process.
            poll = polling.poll()
            poll.register(self._out, polling.POLLIN)
            if poll.poll(None if left is None else math.ceil(left * 1000)):
                return self._out.recv(1)[0]
            if left == 0:
                return None

    def leave_to_parent(self) -> None:
        """Give a forked child its own signals."""
        self._leave()
        _mask("SETMASK", self._mask)


_listening: set[Events] = set()
_forking = threading.local()


def _before_fork() -> None:
    # A child shares our pipe, so its signals would arrive here: block them until it has left.
    _forking.mask = _mask("BLOCK", PASSED_ON if _listening else ())


def _after_fork_in_child() -> None:
    for events in _listening.copy():
        events.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _mask("SETMASK", _forking.mask),
        after_in_child=_after_fork_in_child,
    )
