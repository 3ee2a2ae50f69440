"""Waiters by host and place in the code: 300 of them are one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .facts import Kind, WaiterInfo


class Group(NamedTuple):
    """Waiters on one host for one place in the code, that are alive, or that are not; for a
    read-write lock, with one purpose."""

    host: str
    label: str
    kind: Kind
    alive: bool
    waiters: list[WaiterInfo]
    """In the order of the queue."""

    @property
    def number(self) -> int:
        return len(self.waiters)

    @property
    def oldest(self) -> float:
        """The seconds for which the first of them has waited."""
        return self.waiters[0].waited


def groups(waiters: Iterable[WaiterInfo]) -> list[Group]:
    """Group waiters, in the order of the first one of each group."""
    found: dict[tuple[str, str, Kind, bool], Group] = {}
    for waiter in waiters:
        host = waiter.owner.partition(":")[0]
        key = host, waiter.label, waiter.kind, waiter.alive
        found.setdefault(key, Group(*key, [])).waiters.append(waiter)
    return list(found.values())
