"""What can happen to a process at any time: a fork, and an exception of a signal's handler.

Hooks make a forked child forget what belongs to its parent. Python calls them after `os.fork` and
in multiprocessing. A server that forks in C may not let Python know: uWSGI does so only with
`--py-call-uwsgi-fork-hooks`. So each operation begins with `notice_fork`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Locks of threads that an exception from outside can't leave locked.
#
# Before and after CPython 3.14, `with lock:` takes a lock and begins its block in one step. In
# 3.14, the handler of a signal may raise in between
# (https://github.com/python/cpython/issues/148874), and the lock then stays locked for as long
# as the process lives.

ONCE = (True,)
"""`took += map(lock.acquire, ONCE)` takes a lock and remembers that in one step: CPython looks for
signals after a call, and to go through an iterator is none."""


def rlock() -> Any:
    """Return a `threading.RLock`."""
    return threading.RLock()


if sys.version_info[:2] == (3, 14):
    from _thread import RLock

    class _Whole(RLock):
        # Its `__exit__` stays that of C. One in Python would begin with a look for signals.
        def __enter__(self) -> bool:
            took: list[bool] = []
            took += map(self.acquire, ONCE)
            return True

    def rlock() -> Any:
        lock = threading.RLock()
        return _Whole() if type(lock) is RLock else lock  # gevent has others


_hooks: list[Callable[[], object]] = []
pid = os.getpid()
"""The id of this process, for code that can't ask the system each time."""
_forgetting = rlock()


def in_child(hook: Callable[[], object]) -> None:
    """Call `hook` once in each child that is forked from now on.

    A hook only forgets. New objects are made when they are first used: gunicorn's gevent workers
    replace the classes of `threading` and `queue` after the fork, and an object of an old class
    would stop the whole worker.
    """
    _hooks.append(hook)


def notice_fork() -> None:
    """Call the hooks if this is a forked child in which Python has not called them."""
    if os.getpid() != pid:
        with _forgetting:
            if os.getpid() != pid:
                _forget()


def _forget() -> None:
    global pid
    for hook in _hooks:
        hook()
    pid = os.getpid()


def _after_fork() -> None:
    global _forgetting
    _forgetting = rlock()  # another thread of the parent may have held it
    _forget()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


def by_a_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised it: a function that gets the frame that it
    interrupts as an argument."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            if given is interrupted or (isinstance(given, tuple) and interrupted in given):
                return True
    return False


class Ended(SystemExit):
    """A signal ends the command. Its code is that which a shell has for it: 128 and the number of
    the signal."""


SIGNALLED = (Ended, KeyboardInterrupt)
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a process without an exception, unless a handler raises one."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let signals leave the block by an exception, so that its lock is released. The kernel would
    end the process there and then, or do nothing if it is the first process of a container.

    A handler of the project stays, and an ignored signal is ignored.
    """
    process = os.getpid()

    def end(number: int, _frame: object) -> None:
        if os.getpid() != process:  # a forked child ends as without us
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise Ended(128 + number)

    handled = []
    try:
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                with suppress(ValueError):  # only the main thread may do that
                    signal.signal(number, end)
                    handled.append(number)
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
