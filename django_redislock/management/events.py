"""What happens while we wait: signals, the end of a program of ours, a word from another thread.

All of it comes through one pipe to one thread, so that nothing is lost between looking and
sleeping.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

FROM_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these to its whole foreground."""
ENDING = (*FROM_TERMINAL, signal.SIGTERM)
"""Signals after which a program ends, unless it has other plans."""
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
NUDGE = 0
"""Another thread has something to say. No signal has this number."""


def require_main_thread(who: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise CommandError(f"{who} works in the main thread, where signals arrive.")


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
