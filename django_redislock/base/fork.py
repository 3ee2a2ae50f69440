"""Hooks that make a forked child forget what belongs to its parent.

Python calls them after `os.fork` and in multiprocessing. A server that forks in C may not let
Python know: uWSGI does so only with `--py-call-uwsgi-fork-hooks`. So each operation begins with
`look`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .rlocks import rlock

_hooks: list[Callable[[], object]] = []
process = os.getpid()
"""The id of this process, for code that can't ask the system each time."""
_forgetting = rlock()


def in_child(hook: Callable[[], object]) -> None:
    """Call `hook` once in each child that is forked from now on.

    A hook only forgets. New objects are made when they are first used: gunicorn's gevent workers
    replace the classes of `threading` and `queue` after the fork, and an object of an old class
    would stop the whole worker.
    """
    _hooks.append(hook)


def look() -> None:
    """Call the hooks if this is a forked child in which Python has not called them."""
    if os.getpid() != process:
        with _forgetting:
            if os.getpid() != process:
                _forget()


def _forget() -> None:
    global process
    for hook in _hooks:
        hook()
    process = os.getpid()


def _after_fork() -> None:
    global _forgetting
    _forgetting = rlock()  # another thread of the parent may have held it
    _forget()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)
