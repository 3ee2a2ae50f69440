"""`manage.py redislock list`: which locks are held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...commands import UNAVAILABLE
from ...doctor.finding import Level
from ...doctor.rules import judge
from ...doctor.server import Unreachable, ask
from ...inspection import ORDERS, WORST_FIRST, Listing, Page, State
from ...inspection.sheet import LOCKS
from ...inspection.words import clean, count
from ..arguments import WRONG, add_limit, add_output, add_using, listing, using_of
from ..output import Printer


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
        default="urgency",
        metavar="ORDER",
        help=f"Sort by {', '.join(ORDERS)}; by default urgency: trouble first.",
    )
    add_limit(parser, "locks")
    add_using(parser)
    add_output(parser)


def matching(where: Listing, options: dict[str, Any], limit: int | None) -> Page:
    """Return the locks that the options ask for, up to a limit."""
    return where.page(
        pattern=options["pattern"],
        states=options["state"],
        host=options["host"],
        foreign=options["foreign"],
        order=options["sort"],
        limit=limit,
    )


def as_document(page: Page) -> dict[str, Any]:
    counts = page.counts
    return {
        "items": page.items,
        "total": page.total,
        "states": counts.states,
        "waiters": counts.waiters,
    }


def as_lines(page: Page, printer: Printer, *, wide: bool = False) -> Iterator[str]:
    """A table, and a line with totals."""
    text = count(page.total, "lock")
    if page.total:
        yield from printer.table(LOCKS, page.items, wide=wide)
        counts = page.counts
        # Almost none ever is broken.
        shown = WORST_FIRST if counts.states[State.BROKEN] else WORST_FIRST[1:]
        states = [f"{counts.states[state]} {state}" for state in shown]
        text += f": {', '.join(states)}; {count(counts.waiters, 'waiter')}"
    if len(page.items) < page.total:
        text = f"The first {len(page.items)} of {text}"
    yield f"{text}."


class List:
    help = "List the locks that are held."

    def add_arguments(self, parser: CommandParser) -> None:
        add_filters(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        where = listing(options)
        page = matching(where, options, options["limit"])
        if options["json"]:
            printer.json(as_document(page))
        else:
            printer.lines(as_lines(page, printer, wide=options["output"] == "wide"))
            if not page.total and _unfiltered(options):
                printer.line(_EXAMPLE)
        missing = [*left_out(where)]
        wrong = [] if page.total or missing else [*_what_is_wrong(using_of(options))]
        for line in missing + wrong:
            command.stderr.write(command.style.ERROR(clean(line)))
        return UNAVAILABLE if missing else WRONG if wrong else 0


_EXAMPLE = 'To see one here: with redis_lock("job", ttl=60): time.sleep(60)'


def _unfiltered(options: dict[str, Any]) -> bool:
    return options["pattern"] == "*" and not (options["state"] or options["host"])


def left_out(where: Listing) -> Iterator[str]:
    """A line for each node of the cluster whose locks are missing."""
    for node, error in where.unasked.items():
        yield f"The node {node} is left out: {error}"


def _what_is_wrong(using: str) -> Iterator[str]:
    """Errors on the server that keep everybody from locking.

    The doctor's quick part: a user who may only read is not asked whether it could lock.
    """
    with suppress(Unreachable):
        for finding in chain.from_iterable(map(judge, ask(using, thorough=False))):
            if finding.level == Level.ERROR:
                yield f"{finding.message} {finding.hint}"
