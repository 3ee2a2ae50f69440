"""`manage.py redislock list`: which locks are held."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ..inspection import ORDERS, Inspector, LockInfo, State
from . import serialising
from .asking import add_json, add_using, answering, inspector
from .formatting import clean, count, duration, holder, remaining
from .printing import Printer
from .tables import Cell, Column, Paint, table

_COLUMNS = (
    Column("NAME", shrinks=True),
    Column("STATE"),
    Column("HOLDER", shrinks=True),
    Column("HELD FOR", right=True),
    Column("REMAINING", right=True),
    Column("WAITERS", right=True),
)


def limit_argument(text: str) -> int | None:
    """For argparse: how many; None: all."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"write a number, 0 for all, not {text!r}")
    return int(text) or None


def add_filters(parser: CommandParser) -> None:
    parser.add_argument(
        "--pattern",
        default="*",
        help="Only locks whose names match, as in 'invoice:*'; quote it from the shell.",
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[str(state) for state in State],
        metavar="STATE",
        help=f"Only locks in this state: {', '.join(State)}; may be repeated.",
    )
    parser.add_argument(
        "--host", default="", help="Only locks of owners that begin so: a host, or host:pid."
    )
    parser.add_argument(
        "--foreign",
        action="store_true",
        help="Also what others have written below our prefix; looks at all keys of the database.",
    )
    parser.add_argument(
        "--sort",
        choices=list(ORDERS),
        default="remaining",
        metavar="ORDER",
        help=f"By {', '.join(ORDERS)}; by default what remains, the least first.",
    )
    parser.add_argument(
        "--limit",
        type=limit_argument,
        default=100,
        metavar="NUMBER",
        help="So many at most; 0: all; by default 100.",
    )
    add_using(parser)
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Listing:
    """The locks that were asked for, all seen in one go."""

    locks: list[LockInfo]

    @classmethod
    def of(cls, inspector: Inspector, options: dict[str, Any]) -> Listing:
        return cls(
            inspector.page(
                pattern=options["pattern"],
                states=options["state"],
                host=options["host"],
                foreign=options["foreign"],
                order=options["sort"],
                limit=None,
            ).items
        )

    def json(self, limit: int | None) -> serialising.Json:
        states = Counter(lock.state for lock in self.locks)
        return {
            "items": [serialising.lock(lock) for lock in self.locks[:limit]],
            "total": len(self.locks),
            "states": {str(state): states[state] for state in State},
            "waiters": sum(lock.waiters for lock in self.locks),
        }

    def lines(self, printer: Printer, limit: int | None) -> Iterator[str]:
        """A table, and a line that counts."""
        if self.locks:
            yield from locks_table(self.locks[:limit], printer)
        yield self._counted(limit)

    def _counted(self, limit: int | None) -> str:
        states = Counter(lock.state for lock in self.locks)
        text = count(len(self.locks), "lock")
        if self.locks:
            text += ": " + ", ".join(f"{states[state]} {state}" for state in State)
            text += "; " + count(sum(lock.waiters for lock in self.locks), "waiter")
        if limit is not None and limit < len(self.locks):
            text = f"The first {limit} of {text}"
        return text + "."


def locks_table(locks: list[LockInfo], printer: Printer) -> Iterator[str]:
    rows = [
        [
            Cell(clean(lock.name)),
            Cell(lock.state, state_paint(lock.state, printer)),
            Cell(holder(lock)),
            Cell(duration(lock.holder.held)),
            Cell(remaining(lock)),
            Cell(str(lock.waiters)),
        ]
        for lock in locks
    ]
    return table(_COLUMNS, rows, heading=printer.style.MIGRATE_HEADING, fit=printer.fit)


def state_paint(state: State, printer: Printer) -> Paint:
    paints: dict[State, Paint] = {
        State.HELD: printer.style.SUCCESS,
        State.UNKNOWN: printer.style.WARNING,
        State.STALE: printer.style.ERROR,
    }
    return paints[state]


class List:
    help = "List the locks that are held."

    def add_arguments(self, parser: CommandParser) -> None:
        add_filters(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> None:
        printer = Printer(command, options)
        with answering(command):
            listing = Listing.of(inspector(options), options)
            if options["json"]:
                printer.json(listing.json(options["limit"]))
            else:
                printer.lines(listing.lines(printer, options["limit"]))
