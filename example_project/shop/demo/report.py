"""The results, as a table and as a verdict. Imports neither Django's models nor Redis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.core.management.base import CommandError

SLACK = 1.0
"""Seconds after the end of a lease within which the next holder must have the lock. A busy machine
may be slow to notice."""


@dataclass(frozen=True)
class Round:
    """The state of the database after a round."""

    title: str
    units: int
    orders: int
    left: int
    seconds: float

    @property
    def oversold(self) -> int:
        """How many units were sold that did not exist."""
        return max(0, self.orders - self.units)


@dataclass(frozen=True)
class Crash:
    """The events after the holder of the lock was killed."""

    sales: Round
    ttl: float
    takeover: float
    """Seconds from the kill until the next holder had the lock."""
    dead_token: int
    next_token: int
    refused: bool


def table(unlocked: Round, locked: Round, crash: Crash) -> str:
    """Return the rounds side by side, and the story of the crash."""
    head = f"{'':24}{'units':>7}{'orders':>8}{'oversold':>10}{'left in stock':>15}{'seconds':>9}"
    rows = [
        f"{r.title:24}{r.units:7}{r.orders:8}{r.oversold:10}{r.left:15}{r.seconds:9.1f}"
        for r in (unlocked, locked, crash.sales)
    ]
    takeover = (
        f"After SIGKILL the next one held the lock after {crash.takeover:.1f} s "
        f"(lease: {crash.ttl:g} s)."
    )
    late = (
        f"The dead one's late write, with fencing token {crash.dead_token}: "
        f"{'refused' if crash.refused else 'ACCEPTED'} (now: {crash.next_token})."
    )
    return "\n".join([head, *rows, "", takeover, late])


def verdict(locked: Round, crash: Crash, outages: list[bool]) -> None:
    """Raise `CommandError`, which ends the command with exit code 1, if a promise was broken.
    `outages`: whether the Redlock could be acquired while none, one and two of its three servers
    were down."""
    broken = list(broken_promises(locked, crash, outages))
    if broken:
        raise CommandError("\n".join(["A promise was broken.", *broken]))


def broken_promises(locked: Round, crash: Crash, outages: list[bool]) -> Iterator[str]:
    """Return a sentence for each promise that was not kept."""
    for sales in (locked, crash.sales):
        if sales.orders != sales.units or sales.left:
            yield (
                f"{sales.title}: {sales.units} units made {sales.orders} orders, "
                f"and {sales.left} are left."
            )
    if crash.takeover > crash.ttl + SLACK:
        yield (
            f"The next one held the lock {crash.takeover:.1f} s after its holder was killed, "
            f"and the lease was to end within {crash.ttl:g} s."
        )
    if crash.next_token <= crash.dead_token:
        yield f"The fencing token did not grow: {crash.dead_token}, then {crash.next_token}."
    if not crash.refused:
        yield f"The database took a late write with fencing token {crash.dead_token}."
    for gone, (had, right) in enumerate(zip(outages, (True, True, False), strict=False)):
        if had != right:
            yield f"With {gone} of 3 servers gone the Redlock was {'held' if had else 'refused'}."
