"""Who and where: the readable owner and label of a lease."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import PurePath
from types import CodeType
from typing import Any

MAX_LABEL = 200
Holding = threading.Thread | asyncio.Task[Any]
"""What can hold a lease."""
_NUMBER = re.compile(rb"\d{1,17}")
_NOT_THE_CALLER = ("django_redislock", "contextlib", "asyncio", "redis")


@cache
def _host() -> str:
    return socket.gethostname()


def holder() -> Holding:
    """The thread or task that runs this."""
    if asyncio._get_running_loop() is not None:  # unlike current_task() it raises nothing
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()


def owner(of: Holding) -> str:
    """Host, process, and thread or task."""
    # Not the other way round: under gevent a thread is something else.
    name = of.get_name() if isinstance(of, asyncio.Task) else of.name
    return _owner(os.getpid(), name)


@lru_cache(maxsize=256)
def _owner(pid: int, name: str) -> str:
    return clean(f"{_host()}:{pid}:{name}").replace("|", "/")


def clean(text: str, most: int = MAX_LABEL) -> str:
    """One printable line of bounded length, which does nothing to a terminal, a log or a page."""
    text = text[:most]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text


def read(text: bytes) -> str:
    """What others have written for people: an owner, a label, a reason. It may hold anything."""
    return clean(text[: 4 * MAX_LABEL].decode(errors="replace"))


def message(error: BaseException) -> str:
    """What an exception says, if it can."""
    try:
        return str(error)
    except Exception:
        return "its message can't be read"


def number(text: bytes | None) -> int | None:
    """A whole number that others have written; None: it is none, or larger than any of ours."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


@lru_cache(maxsize=1024)
def of_code(code: CodeType, line: int) -> str:
    """`app/module.py:line in function`."""
    path = "/".join(PurePath(code.co_filename).parts[-2:])
    return clean(f"{path}:{line} in {code.co_qualname}")


def dotted_path(of: Any) -> str:
    """Of a function or a class, in which a lock's name may have no brackets."""
    return f"{of.__module__}.{of.__qualname__}".replace("<locals>", "locals")


def of_function(function: Callable[..., Any]) -> str:
    """Where a function is defined."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:  # written in C; its arguments, if it is an object, are nobody's business
        return clean(getattr(function, "__qualname__", type(function).__qualname__))
    return of_code(code, code.co_firstlineno)


@lru_cache(maxsize=1024)
def _between(module: str) -> bool:
    """It is one that stands between us and who takes the lock."""
    return module.partition(".")[0] in _NOT_THE_CALLER


def of_caller() -> str:
    """The label of the innermost frame that is not ours."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _between(frame.f_globals.get("__name__", "")):
            return of_code(frame.f_code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return "an event loop"  # a coroutine that was made a task of its own
