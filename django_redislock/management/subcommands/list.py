"""`manage.py redislock list`: which locks are held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...commands import UNAVAILABLE
from ...doctor.facts import Unreachable, ask
from ...doctor.finding import Level
from ...doctor.rules import judge
from ...inspection import ORDERS, Inspector, LockInfo, State
from ...inspection.words import clean, count, duration, holder, remaining
from ..arguments import add_json, add_limit, add_using, inspector
from ..failing import WRONG
from ..output import Cell, Column, Paint, Printer

_COLUMNS = (
    Column("NAME", shrinks=True),
    Column("STATE"),
    Column("HOLDER", shrinks=True),
    Column("HELD FOR", right=True),
    Column("REMAINING", right=True),
    Column("WAITERS", right=True),
)


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
        "--host",
        default="",
        help="Only locks of owners that begin with this: 'web3:', 'web3:26138:'.",
    )
    parser.add_argument(
        "--foreign",
        action="store_true",
        help="Also values of other programs under our prefix; reads all keys of the database.",
    )
    parser.add_argument(
        "--sort",
        choices=list(ORDERS),
        default="remaining",
        metavar="ORDER",
        help=f"Sort by {', '.join(ORDERS)}; by default remaining, shortest first.",
    )
    add_limit(parser, "locks")
    add_using(parser)
    add_json(parser)


def matching(inspector: Inspector, options: dict[str, Any]) -> list[LockInfo]:
    """Return all locks that the options ask for."""
    return inspector.page(
        pattern=options["pattern"],
        states=options["state"],
        host=options["host"],
        foreign=options["foreign"],
        order=options["sort"],
        limit=None,
    ).items


def as_document(locks: list[LockInfo], limit: int | None) -> dict[str, Any]:
    states, waiters = _totals(locks)
    return {"items": locks[:limit], "total": len(locks), "states": states, "waiters": waiters}


def as_lines(locks: list[LockInfo], limit: int | None, printer: Printer) -> Iterator[str]:
    """A table, and a line with totals."""
    text = count(len(locks), "lock")
    if locks:
        yield from locks_table(locks[:limit], printer)
        states, waiters = _totals(locks)
        text += ": " + ", ".join(f"{number} {state}" for state, number in states.items())
        text += "; " + count(waiters, "waiter")
    if limit is not None and limit < len(locks):
        text = f"The first {limit} of {text}"
    yield f"{text}."


def _totals(locks: list[LockInfo]) -> tuple[dict[State, int], int]:
    """How many are in each state, and how many waiters there are."""
    states = Counter(lock.state for lock in locks)
    return {state: states[state] for state in State}, sum(lock.waiters for lock in locks)


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
    return printer.table(_COLUMNS, rows)


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

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        where = inspector(options)
        locks = matching(where, options)
        if options["json"]:
            printer.json(as_document(locks, options["limit"]))
        else:
            printer.lines(as_lines(locks, options["limit"], printer))
        missing = [*left_out(where)]
        wrong = [] if locks or missing else [*_what_is_wrong(where.using)]
        for line in missing + wrong:
            command.stderr.write(command.style.ERROR(clean(line)))
        return UNAVAILABLE if missing else WRONG if wrong else 0


def left_out(inspector: Inspector) -> Iterator[str]:
    """A line for each node of the cluster whose locks are missing."""
    for node, error in inspector.unasked.items():
        yield f"The node {node} is left out: {error}"


def _what_is_wrong(using: str) -> Iterator[str]:
    """Errors on the server that keep everybody from locking.

    The doctor's quick part: a user who may only read is not asked whether it could lock.
    """
    with suppress(Unreachable):
        for finding in chain.from_iterable(map(judge, ask(using, thorough=False))):
            if finding.level == Level.ERROR:
                yield f"{finding.message} {finding.hint}"
