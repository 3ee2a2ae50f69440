"""Inspect Redlocks: ask all of their servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ..base.exceptions import LockUnavailable
from ..base.servers import Servers
from ..lease import claims
from ..primitives.contract import Sight, run
from ..primitives.redlock import Redlock
from ..settings.validators import validate_operator
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .facts import LockInfo, Past, WaiterInfo
from .inspector import Inspector

T = TypeVar("T")


class RedlockInspector:
    """The Redlocks on a group of servers.

    A server that can't be reached is left out. Raises `LockUnavailable` if no majority can be
    asked."""

    def __init__(self, servers: Servers) -> None:
        self.using = servers
        self.unasked: dict[str, LockUnavailable] = {}
        """The servers that could not be reached last time, with the errors."""
        self._each = [Inspector(alias) for alias in servers.aliases]

    def get(self, name: str) -> LockInfo | None:
        """Return the lock if one lease is, or may be, on a majority of the servers."""
        found = [lock for lock in self._ask(lambda one: one.get(name)) if lock is not None]
        at = Counter(lock.seen for lock in found)
        for lock in found:
            if at[lock.seen] + len(self.unasked) >= self.using.quorum:
                return replace(lock, using=self.using)
        return None

    def held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield the locks of these names that are held."""
        return filter(None, map(self.get, names))

    def waiters(self, lock: str | LockInfo, limit: int = 100) -> list[WaiterInfo]:  # noqa: ARG002
        """Return an empty list: a Redlock has no queue."""
        return []

    def past(self, lock: str | LockInfo) -> Past:
        """Return what the first server that answers knows about past holders."""
        return self._ask(lambda one: one.past(lock))[0]

    def note(self, lock: str | LockInfo) -> None:
        """Return None: a Redlock has no note."""

    def clear(self, lock: LockInfo, *, by: str, reason: str) -> bool:
        """Clear the lock on all servers, as `Inspector.clear` does. It may stay on `unasked`."""
        by, reason = validate_operator(by, reason)
        server, kind = server_of(self.using), Redlock(self.using)
        seen = [Sight(one.seen, one.holder) for one in lock.holders]
        done = run(claims.clear(SyncPort(server), kind, lock.keys, server, seen, by, reason))
        self._ask(lambda one: one.get(lock.name))
        return done

    def _ask(self, question: Callable[[Inspector], T]) -> list[T]:
        """Return the answers of the servers that answered."""
        answers: list[T] = []
        self.unasked = {}
        for one in self._each:
            try:
                answers.append(question(one))
            except LockUnavailable as error:
                self.unasked[one.using] = error
        if len(answers) < self.using.quorum:
            why = "; ".join(map(str, self.unasked.values()))
            raise LockUnavailable(f"No majority of the servers {self.using} can be asked: {why}")
        return answers


def inspector_of(using: str | Servers) -> Inspector | RedlockInspector:
    """Return what inspects the locks of an alias, or the Redlocks of a group of servers."""
    return RedlockInspector(using) if isinstance(using, Servers) else Inspector(using)
