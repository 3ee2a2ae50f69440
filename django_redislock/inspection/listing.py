"""Locks in order: those that need somebody first, from one server or several.

A lock is the more urgent, the worse its state, the more waiters it has, and the longer it has been
held. Renewals change none of these, so a lock keeps its place while nothing happens to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from ..base.exceptions import LockError, LockUnavailable
from .facts import Counts, LockInfo, Page, State

T = TypeVar("T")


def _urgency(lock: LockInfo) -> tuple[Any, ...]:
    state, since = lock.holders[0].urgency
    return state, -lock.waiters, since, lock.name


def _remaining(lock: LockInfo) -> float:
    return min(inf if (left := one.holder.remaining) is None else left for one in lock.holders)


ORDERS = {
    "urgency": _urgency,
    "remaining": _remaining,
    "name": lambda lock: lock.name,
    "held": lambda lock: -(lock.holder.held or 0.0),
    "waiters": lambda lock: -lock.waiters,
    "owner": lambda lock: lock.holder.owner or "",
    "state": lambda lock: (lock.holders[0].urgency[0], lock.name),
}
"""Orders of locks. The worst state comes first, and so do the lease that ends first, the lock held
longest and the lock with most waiters."""


class Urgent(NamedTuple):
    """The locks of one server that come first, and what is known of the others."""

    locks: list[LockInfo]
    ranks: Sequence[int] = ()
    """The ranks in the index that the others don't have, in order."""
    listed: int = 0
    """The number of entries of the index; 0: there are no others."""

    @property
    def others(self) -> int:
        """The number of the others. They are held, and nobody waits for them."""
        return self.listed - len(self.ranks)

    def rank_of_other(self, position: int) -> int:
        """Return the rank in the index of one of the others."""
        for rank in self.ranks:
            if rank > position:
                break
            position += 1
        return position


class Part(Protocol):
    """What a list asks of an inspector."""

    using: str
    unasked: dict[str, LockUnavailable]

    def _urgent(self) -> Urgent: ...
    def _others(self, urgent: Urgent, offset: int, limit: int | None) -> list[LockInfo]: ...
    def all(self, pattern: str) -> Iterator[LockInfo]: ...
    def held(self, names: Sequence[str]) -> Iterator[LockInfo]: ...
    def discover(self) -> list[LockInfo]: ...


class Listing:
    """The locks that several inspectors see, as one list.

    A server that can't be reached is left out. Raises the first error, usually `LockUnavailable`,
    if that is true of all.
    """

    def __init__(self, inspectors: Sequence[Part]) -> None:
        self._inspectors = inspectors
        self.away: dict[str, LockError] = {}
        """The aliases that could not be reached last time, with the errors."""

    @property
    def unasked(self) -> dict[str, LockUnavailable]:
        """The nodes of clusters that could not be reached last time, with the errors."""
        return dict(chain.from_iterable(one.unasked.items() for one in self._inspectors))

    def page(
        self,
        *,
        pattern: str = "*",
        states: Iterable[State] = (),
        host: str = "",
        foreign: bool = False,
        order: str = "urgency",
        offset: int = 0,
        limit: int | None = 100,
    ) -> Page:
        """Return some of the held locks, and count all that match.

        `pattern` is a pattern of names, as in `LOCKS`; `host` is the beginning of the owner of one
        of its holders; `foreign` adds what `Inspector.discover` finds. A `limit` of `None`: all.

        Without a filter, and in the order of urgency, a server with more than a thousand locks is
        asked only for those in trouble, those with waiters, and those of the page.
        """
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        states = frozenset(states)
        self.away = {}
        others = self.ask(lambda one: one.discover() if foreign else [])
        found = [lock for _, some in others for lock in some if fnmatchcase(lock.name, pattern)]
        if pattern == "*" and not host and order == "urgency" and not states:
            return self._urgent_page(found, offset, limit)
        if pattern == "*" and states and State.HELD not in states:
            answers = self.ask(lambda one: one._urgent().locks)
        else:
            answers = self.ask(lambda one: [*one.all(pattern)])
        found += chain.from_iterable(some for _, some in answers)
        found = [
            lock for lock in found if (not states or lock.state in states) and lock.held_by(host)
        ]
        found.sort(key=ORDERS[order])
        end = None if limit is None else offset + limit
        return Page(items=found[offset:end], total=len(found), counts=_counted(found))

    def urgent(self) -> Page:
        """Return the locks that are stale or unknown and those with waiters. The `counts` are of
        all locks."""
        self.away = {}
        found, counts, _parts = self._first([])
        items = [lock for lock in found if lock.state != State.HELD or lock.waiters]
        return Page(items=items, total=len(items), counts=counts)

    def _first(
        self, found: list[LockInfo]
    ) -> tuple[list[LockInfo], Counts, list[tuple[Part, Urgent]]]:
        """Return the locks that come first, with those in `found`; the counts of all; and what is
        known of the others."""
        parts = self.ask(lambda one: one._urgent())
        first = found + [lock for _, urgent in parts for lock in urgent.locks]
        first.sort(key=_urgency)
        return first, _counted(first, others=sum(urgent.others for _, urgent in parts)), parts

    def _urgent_page(self, found: list[LockInfo], offset: int, limit: int | None) -> Page:
        found, counts, parts = self._first(found)
        if limit is None:
            found += chain.from_iterable(one._others(urgent, 0, None) for one, urgent in parts)
            return Page(
                items=sorted(found, key=_urgency)[offset:], total=counts.total, counts=counts
            )
        items = found[offset : offset + limit]
        skip = max(0, offset - len(found))
        for one, urgent in parts:
            if skip < urgent.others and len(items) < limit:
                items += one._others(urgent, skip, limit - len(items))
            skip = max(0, skip - urgent.others)
        return Page(items=items, total=counts.total, counts=counts)

    def ask(self, question: Callable[[Part], T]) -> list[tuple[Part, T]]:
        """Return the answers of the inspectors that can be asked."""
        answers = []
        for one in self._inspectors:
            if one.using in self.away:
                continue
            try:
                answers.append((one, question(one)))
            except LockError as error:
                self.away[one.using] = error
        if self.away and self.away.keys() == {one.using for one in self._inspectors}:
            raise next(iter(self.away.values()))
        return answers


def _counted(locks: Sequence[LockInfo], others: int = 0) -> Counts:
    """Count locks, and others that are held and have no waiters."""
    states = Counter(lock.state for lock in locks)
    states[State.HELD] += others
    return Counts(
        total=len(locks) + others,
        states={state: states[state] for state in State},
        contended=sum(lock.waiters > 0 for lock in locks),
        waiters=sum(lock.waiters for lock in locks),
    )
