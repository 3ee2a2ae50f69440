"""What people read of a lease: its owner, its label, its holder as Redis described it; and other
text for people."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import PurePath
from types import CodeType
from typing import Any, NamedTuple

MAX_LABEL = 200
Holding = threading.Thread | asyncio.Task[Any]
"""A holder inside this process."""
_NUMBER = re.compile(rb"\d{1,17}")
_HARMFUL = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # control characters
    r"\u2028\u2029"  # the ends of a line and of a paragraph
    r"\u202a-\u202e\u2066-\u2069"  # marks that turn text round
    r"\ud800-\udfff]"  # halves of a character
)
_NOT_THE_CALLER = {
    *("django_redislock", "contextlib", "asyncio", "redis"),
    *("asgiref", "celery", "django_tasks", "dramatiq", "kombu", "rq"),
}


@cache
def _host() -> str:
    return socket.gethostname()


def holder() -> Holding:
    """Return the thread or task that runs this."""
    if asyncio._get_running_loop() is not None:  # current_task() would raise without a loop
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()


def cancelled() -> bool:
    """Return whether this task was cancelled, and not one that it awaits."""
    me = holder()
    return isinstance(me, asyncio.Task) and me.cancelling() > 0


def owner(of: Holding) -> str:
    """Return host, process, and thread or task."""
    # Check for a task first: under gevent, current_thread() returns a greenlet's thread object.
    name = of.get_name() if isinstance(of, asyncio.Task) else of.name
    return _owner(os.getpid(), name)


@lru_cache(maxsize=256)
def _owner(pid: int, name: str) -> str:
    return clean(f"{_host()}:{pid}:{name}").replace("|", "/")


def is_harmless(text: str) -> bool:
    """Return whether text may be a name: one line that UTF-8 can write, and that does not turn
    round the text beside it. Joiners, all kinds of spaces and soft hyphens may be in it."""
    return text.isprintable() or _HARMFUL.search(text) is None


def clean(text: str, most: int = MAX_LABEL) -> str:
    """Return one printable line of bounded length, harmless to a terminal, a log and a page.

    What is not harmless becomes a question mark. What can't be seen is escaped, as `repr` does it.
    """
    text = text[:most]
    if not text.isprintable():
        text = _HARMFUL.sub("?", text)
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)[:most]
    return text


@lru_cache(maxsize=1024)  # in a list of locks, most owners and labels come again
def read(text: bytes) -> str:
    """Return a text from Redis for people: an owner, a label, a reason. Any bytes may come."""
    return clean(text[: 4 * MAX_LABEL].decode(errors="replace"))


def message(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return "its message can't be read"


def number(text: bytes | None) -> int | None:
    """Parse a whole number from Redis. None: it is none, or larger than this package writes."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


@lru_cache(maxsize=1024)
def of_code(code: CodeType, line: int) -> str:
    """Return `app/module.py:line in function`."""
    path = "/".join(PurePath(code.co_filename).parts[-2:])
    return clean(f"{path}:{line} in {code.co_qualname}")


def dotted_path(of: Any) -> str:
    """Return the path of a function or class, without the brackets of `<locals>`.

    Raises `TypeError` for what has none, such as a partial.
    """
    if not hasattr(of, "__qualname__"):
        raise TypeError(f"{of!r} has no dotted path for a name: write a name")
    return f"{of.__module__}.{of.__qualname__}".replace("<locals>", "locals")


@lru_cache(maxsize=1024)
def _between(module: str) -> bool:
    """Return whether a module stands between this one and the code that takes the lock."""
    return module.partition(".")[0] in _NOT_THE_CALLER


def of_caller(level: int = 1, inside: int = 2) -> str:
    """Return the label of the innermost frame outside this package, or of the frame so many
    levels out. So many callers are inside."""
    frame, caller = sys._getframe(inside).f_back, None
    while frame is not None and level:
        if not _between(frame.f_globals.get("__name__", "")):
            caller = frame
            level -= 1
        frame = frame.f_back
    if caller is None:
        return "an event loop"  # the coroutine was made a task of its own
    return of_code(caller.f_code, caller.f_lineno)


def escaped(text: str) -> str:
    """Escape a text for the patterns of Redis."""
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)


class Secret(str):
    """A text that contains a token. Its `repr`, and so the report of a crash, does not show it,
    since the token is enough to end the lease."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


_OURS = re.compile(rb"[0-9A-Za-z]{32}[|+?](\d{1,16})\|(\d{0,17})\|\d{1,14}\|([^|\t]*)\|([^\t]*)")
"""Token, mark, fencing token, acquired at (µs), ttl (ms), owner and label. The time is empty if it
is the fencing token. This package writes no longer numbers, and neither a datetime nor a database
could take them."""


class Holder(NamedTuple):
    """The holder of a lock, from the answer to the request that found the lock busy."""

    owner: str | None
    """Host, process, and thread or task. None: another program wrote the value at the key."""
    label: str
    fencing_token: int | None
    acquired_at: datetime | None
    held: float | None
    """Seconds since it was acquired, by the server's clock."""
    remaining: float | None
    """Seconds until its lease ends, unless it is renewed. None: it has no TTL."""

    def __str__(self) -> str:
        if self.owner is None:
            text = "a value that this package did not write"
        else:
            text = f"{self.owner} ({self.label})"
        if self.acquired_at is not None:
            text += f" since {self.acquired_at:%Y-%m-%d %H:%M:%S} UTC, for {self.held:.1f} s"
        if self.remaining is None:
            return f"{text}; it has no TTL and stays until somebody deletes it"
        return f"{text}; the lease ends in {self.remaining:.1f} s unless it is renewed"

    @property
    def seen_at(self) -> datetime | None:
        """When Redis answered, by its clock."""
        if self.acquired_at is None or self.held is None:
            return None
        return self.acquired_at + timedelta(seconds=self.held)

    def _plain(self) -> list[Any]:
        """Return values that JSON can write."""
        at = self.acquired_at
        return [*self._replace(acquired_at=at and at.isoformat())]  # type: ignore[arg-type]

    @classmethod
    def _of_plain(cls, values: Sequence[Any]) -> Holder:
        holder = cls(*values)
        at: Any = holder.acquired_at
        return holder._replace(acquired_at=datetime.fromisoformat(at)) if at else holder

    def came_after(self, time: datetime | None) -> bool:
        """Return whether it is known to have acquired the lock after `time`."""
        return time is not None and self.acquired_at is not None and self.acquired_at > time

    @classmethod
    def parse(cls, value: bytes, ttl_ms: int, now_us: int) -> Holder:
        """Parse the value at a lock's key, written by lua/value.lua or by another program, or
        the entry of one of several holders, written by lua/permits.lua."""
        remaining = None if ttl_ms < 0 else ttl_ms / 1000
        ours = _OURS.match(value)
        if ours is None:
            return cls(None, "", None, None, None, remaining)
        fencing_token, acquired_us, owner, label = ours.groups()
        acquired = int(acquired_us or fencing_token)
        return cls(
            owner=read(owner),
            label=read(label),
            fencing_token=int(fencing_token),
            acquired_at=server_time(acquired),
            held=max(0, now_us - acquired) / 1e6,
            remaining=remaining,
        )


def log_extra(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event for the `extra` of a log record: values that any formatter can
    write as JSON. The names have a prefix, since a record has a `name` of its own."""
    return {f"{prefix}_{field}": _as_json(value) for field, value in fields.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Holder):
        return {field: _as_json(its) for field, its in value._asdict().items()}
    return value.isoformat() if isinstance(value, datetime) else value


def server_time(microseconds: int) -> datetime:
    """Return a time of the server's clock as an aware datetime."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def warn_if_unused(its: object, text: str) -> None:
    """Warn with this text when an object is dropped that is not `_used`."""
    # Not __del__: Python would drop a signal's exception that comes while it runs.
    finalizer = weakref.finalize(its, _warn_if_unused, its.__dict__, text)
    finalizer.atexit = False


def _warn_if_unused(attributes: dict[str, Any], text: str) -> None:
    if not attributes.get("_used") and not sys.is_finalizing():
        warnings.warn(text, RuntimeWarning, stacklevel=3)
