"""Locks without a server: always free, always busy, or out of reach."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from ..base.exceptions import LockError, LockNotAcquired, LockUnavailable
from ..base.holder import Holder
from ..lease.lock import Lock
from ..primitives.contract import Claim, Port, Primitive, Sight
from ..primitives.keys import Keys, name_of
from ..settings.policy import Policy
from .condition import Condition
from .no_server import PRIMITIVES, Caches, answering, configured, finding, pretended
from .patterns import matches, validate_pattern

NOWHERE = Caches("nowhere")


def locks_always_free() -> Condition[None]:
    """Whoever asks for a lock gets it at once, and no server is asked.

    Nobody is kept out, and nothing is remembered: what is to be done `once` is done each time.
    """
    return Condition(_free)


def locks_always_busy(name: str = "*", *, holder: Holder | str = "") -> Condition[None]:
    """Somebody else holds the locks of this name, or pattern of names, and nobody waits for them:
    what would wait is refused at once.

    `holder` is who that is, for messages. Other names are free, as in `locks_always_free()`; or
    what they are where this is entered inside of `locks_in_memory()`.
    """
    validate_pattern(name)
    if not isinstance(holder, Holder | str):
        raise TypeError(f"holder must be a Holder, or a str, who it is; not {holder!r}")
    who = holder if isinstance(holder, Holder) else _somebody(holder)
    return Condition(lambda: _busy(name, who))


def redis_unavailable() -> Condition[None]:
    """Whoever asks the server gets `LockUnavailable`, at once, however long it would wait."""
    return Condition(_unavailable)


@contextmanager
def _free() -> Iterator[None]:
    with NOWHERE.in_place(_grant):
        yield


_fences = itertools.count(time.time_ns() // 1000)


async def _grant(
    port: Port,  # noqa: ARG001
    script: str,
    keys: Sequence[str],
    args: Sequence[str | int | bytes],
) -> Any:
    """What a script would answer at a server that has nothing: its header says in which form."""
    now = str(time.time_ns() // 1000).encode()
    match script:
        case "mutex_acquire" | "mutex_adopt" | "permits_acquire" | "permits_adopt":
            return [1, next(_fences), now]
        case "timestamp_acquire":
            return [1, now]
        case "timestamp_adopt":
            return [1, None, now]
        case "multi_acquire":
            return [1, now, *(next(_fences) for _ in keys[::6])]
        case "mutex_holder" | "timestamp_holder" | "record_get":
            return None
        case "permits_holders":
            return [now]
        case "record_first":
            return args[0] if isinstance(args[0], bytes) else str(args[0]).encode()
        case "record_set" | "record_delete":
            return 0
        case "permits_downgrade" | "record_write":
            return [1]
        case _ if script.endswith(("_extend", "_release")):
            return [1]
    raise LockError(
        f"locks_always_free() grants locks, and knows nothing that {script!r} could be asked "
        f"about. Write locks_in_memory(), which runs everything.",
        name_of(keys[0]) if keys else None,
    )


@contextmanager
def _unavailable() -> Iterator[None]:
    async def refuse(port: Port, script: str, keys: Sequence[str], args: object) -> Any:  # noqa: ARG001
        raise LockUnavailable(
            "Redis could not be asked: redis_unavailable() says so",
            name_of(keys[0]) if keys else None,
            # Who acquires would try again while it waits. What is owed is given back later.
            passing=not script.endswith("_acquire"),
        ) from redis.ConnectionError("redis_unavailable()")

    with nullcontext() if configured() else NOWHERE.in_place(), answering(refuse):
        yield


def _somebody(owner: str) -> Holder:
    began = datetime.now(UTC) - timedelta(seconds=5)
    return Holder(
        owner=owner or "another-host:1:MainThread",
        label="locks_always_busy()",
        fencing_token=next(_fences),
        acquired_at=began,
        held=5.0,
        remaining=25.0,
    )


@contextmanager
def _busy(pattern: str, holder: Holder) -> Iterator[None]:
    def stand_in(original: Any) -> Any:
        def primitive(lock: Lock, policy: Policy) -> Primitive:
            is_: Primitive = original(lock, policy)
            for name in getattr(lock, "names", (lock.name,)):
                if matches(name, pattern):
                    return _Busy(is_, name, holder)
            return is_

        return primitive

    busy = [(kind, stand_in(kind._primitive)) for kind, _ in PRIMITIVES]
    with nullcontext() if pretended() else _free(), finding(busy):
        yield


class _Busy:
    """In place of the primitive of a lock that somebody else holds."""

    def __init__(self, primitive: Primitive, name: str, holder: Holder) -> None:
        self._primitive = primitive
        self._name = name
        self._holder = holder

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._primitive, attribute)

    async def acquire(self, port: Port, claim: Claim, wait: float | None) -> LockNotAcquired:  # noqa: ARG002
        return LockNotAcquired(self._name, self._holder, wait or 0.0)

    async def look(self, port: Port, keys: Keys) -> list[Sight]:  # noqa: ARG002
        return [Sight(b"", self._holder)]

    async def clear(self, port: Port, keys: Keys, seen: Sequence[bytes], *by: str) -> list[bool]:  # noqa: ARG002
        return [False for _ in seen]
