"""When the watchdog looks at leases: cohorts, in a heap by the time at which they are due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..primitives.contract import MOST_AT_ONCE
from .lifetime import NEVER, Lifetime, Times

EARLY = 0.25
"""A renewal may come early by this part of its interval, so that batches form."""

_order = itertools.count()
"""Orders cohorts that have the same time, since lifetimes can't be compared."""


class Cohort(NamedTuple):
    """All leases that share their times, or one lease. Whoever has other times by now has left
    it."""

    time: float
    """When they are due; or, when they are, their deadline."""
    order: int
    times: Times
    leases: Sequence[Lifetime]
    early: float
    """Seconds by which their renewal may come before that time."""


class Schedule:
    """The cohorts at one server that are not due yet. One thread uses it."""

    def __init__(self, held: Callable[[], Mapping[str, Lifetime]]) -> None:
        self._held = held
        """Returns all leases that are held here, by token."""
        self._heap: list[Cohort] = []
        self.size = 0
        """The number of leases in there, with those that have left."""

    def clear(self) -> None:
        self._heap.clear()
        self.size = 0

    def add(self, times: Times, leases: Sequence[Lifetime]) -> None:
        """Enter the leases that share these times. No others may do so."""
        times.at = at = min(times.due, *(its.write_at for its in leases))
        early = EARLY * times.term / 3 if leases[0].renew and at == times.due else 0.0
        self.size += len(leases)
        heapq.heappush(self._heap, Cohort(at, next(_order), times, leases, early))

    def next(self) -> float:
        """Return when the next lease is due."""
        if self.size > 2 * len(self._held()) + MOST_AT_ONCE:
            # The rest are leases that are no longer held.
            held = [its._replace(leases=[*self._members(its)]) for its in self._heap]
            self._heap = [its for its in held if its.leases]
            self.size = sum(len(its.leases) for its in self._heap)
            heapq.heapify(self._heap)
        while self._heap and next(self._members(self._heap[0]), None) is None:
            self._pop()
        return self._heap[0].time if self._heap else NEVER

    def due(self, until: float) -> Iterator[Cohort]:
        """Take out the cohorts that are due until then, or nearly, without those that have
        left."""
        while self._heap and self._heap[0].time - self._heap[0].early <= until:
            cohort = self._pop()
            if leases := [*self._members(cohort)]:
                yield cohort._replace(leases=leases)

    def _pop(self) -> Cohort:
        its = heapq.heappop(self._heap)
        self.size -= len(its.leases)
        return its

    def _members(self, cohort: Cohort) -> Iterator[Lifetime]:
        """Yield the leases that have not left it, and that are held."""
        there = self._held()
        for its in cohort.leases:
            if its.times is cohort.times and its.claim.token in there:
                yield its
