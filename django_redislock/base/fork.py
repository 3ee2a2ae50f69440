"""What a forked child does before anything else: it forgets what is its parent's.

`os.fork` and multiprocessing tell Python of it. A server that forks in C need not: uWSGI does so
only with `--py-call-uwsgi-fork-hooks`. So each operation looks whether it is in the same process
as the one before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_hooks: list[Callable[[], object]] = []
_process = os.getpid()
_forgetting = threading.Lock()


def in_child(hook: Callable[[], object]) -> None:
    """Call `hook` once in each child that is forked from now on.

    A hook only forgets. What is needed instead is made when it is first used: gunicorn's gevent
    workers replace the classes of `threading` and `queue` after the fork, and an object of the old
    ones would stop the whole worker.
    """
    _hooks.append(hook)


def look() -> None:
    """If this is a child, and Python was not told, do what has to be done there."""
    if os.getpid() != _process:
        with _forgetting:
            if os.getpid() != _process:
                _forget()


def _forget() -> None:
    global _process
    for hook in _hooks:
        hook()
    _process = os.getpid()


def _after_fork() -> None:
    global _forgetting
    _forgetting = threading.Lock()  # another thread of the parent may have held it
    _forget()


os.register_at_fork(after_in_child=_after_fork)
