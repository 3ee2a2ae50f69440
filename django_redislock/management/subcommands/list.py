"""`manage.py redislock list`: which locks are held; `watch`: the list, drawn again and again."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from ...base.exceptions import LockError, LockUnavailable
from ...base.process import Ended
from ...commands import UNAVAILABLE
from ...doctor.finding import Level
from ...doctor.rules import UNREACHABLE, server_findings
from ...inspection import Listing, Page, State
from ...inspection.facts import WORST_FIRST
from ...inspection.listing import ORDERS
from ...inspection.sheet import LOCKS
from ...inspection.tasks import Stage, names
from ...inspection.words import clean, count, duration, instant
from ..arguments import (
    WRONG,
    Parser,
    command_line,
    interval_argument,
    limit_argument,
    listing,
    using_of,
)
from ..events import Events
from ..output import Printer, Screen

_EXAMPLE = 'To see one here: with redis_lock("job", ttl=60): time.sleep(60)'
_WAITING = (Stage.PROMOTED, Stage.PARKED, Stage.QUEUED)
"""Stages of tasks that hold no lock."""
_AROUND = 6
"""Lines of a screen without a lock: up to three above, the titles, the totals, one to spare."""


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
    return {
        "items": page.items,
        "total": page.total,
        "states": page.counts.states,
        "waiters": page.counts.waiters,
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

    def add_arguments(self, parser: Parser) -> None:
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
        parser.host()
        parser.flag(
            "--foreign",
            "Also values of other programs under our prefix; reads all keys of the database.",
        )
        parser.add_argument(
            "--sort",
            choices=list(ORDERS),
            default="urgency",
            metavar="ORDER",
            help=f"Sort by {', '.join(ORDERS)}; by default urgency: trouble first.",
        )
        parser.limit("locks")
        parser.using()
        parser.output()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        where = listing(options)
        page = matching(where, options, options["limit"])
        lines = [*as_lines(page, printer, wide=options["output"] == "wide")]
        filtered = options["pattern"] != "*" or options["state"] or options["host"]
        if not filtered:
            lines += _waiting_tasks(using_of(options)) or ([] if page.total else [_EXAMPLE])
        printer.write(as_document(page), lines)
        missing = [*left_out(where)]
        wrong = [] if page.total or missing else [*_what_is_wrong(using_of(options))]
        for line in missing + wrong:
            printer.complain(line)
        return UNAVAILABLE if missing else WRONG if wrong else 0


def _waiting_tasks(using: str) -> list[str]:
    """A line about tasks that are no locks, since they don't run."""
    with suppress(LockError):  # the user may only look at locks
        found = names(using)
        totals = sum((one.counts for one in found), Counter[Stage]())
        if said := ", ".join(f"{totals[it]} {it}" for it in _WAITING if totals[it]):
            waiting = ((it, one) for one in found for it in one.items if it.stage in _WAITING)
            it, one = max(waiting, key=lambda both: both[0].age or 0.0)
            oldest = clean(f"the oldest is {it.id} of {one.name!r}, {it.stage}")
            command = command_line("tasks", {"using": using})
            return [f"Tasks: {said}; {oldest} for {duration(it.age)}. See {command}"]
    return []


def left_out(where: Listing) -> Iterator[str]:
    """A line for each node of the cluster whose locks are missing."""
    for node, error in where.unasked.items():
        yield f"The node {node} is left out: {error}"


def _what_is_wrong(using: str) -> Iterator[str]:
    """Errors on the server that keep everybody from locking.

    The doctor's quick part: a user who may only read is not asked whether it could lock.
    """
    for finding in server_findings(using, thorough=False):
        if finding.level == Level.ERROR and finding.id != UNREACHABLE:
            yield f"{finding.message} {finding.hint}"


class Watch(List):
    help = "Show the list, and refresh it until Ctrl-C."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--interval",
            type=interval_argument,
            default=2.0,
            metavar="SECONDS",
            help="Time between two refreshes; by default 2.",
        )
        parser.add_argument(
            "--count",
            type=limit_argument,
            default=None,
            metavar="NUMBER",
            help="Stop after showing the list this many times.",
        )

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        watcher = _Watcher(listing(options), options, printer)
        try:
            with Events("redislock watch"):
                watcher.run()
        except Ended as ended:
            if ended.code != 128 + signal.SIGINT:
                raise
        return 0


class _Watcher:
    def __init__(self, where: Listing, options: dict[str, Any], printer: Printer) -> None:
        self._where = where
        self._options = options
        self._printer = printer
        self._screen = Screen(printer)
        self._page: Page | None = None
        """The locks when Redis last answered."""
        self._updated = datetime.now(UTC)

    def run(self) -> None:
        """Raise `LockUnavailable` if Redis is away at the end."""
        with self._screen.shown():
            for number in itertools.count(1):
                away = None
                try:
                    self._page = matching(self._where, self._options, self._limit())
                    self._updated = datetime.now(UTC)
                except LockUnavailable as error:
                    away = error
                if self._options["json"]:
                    self._json(away)
                else:
                    self._screen.draw(self._lines(away))
                if number == self._options["count"]:
                    break
                time.sleep(self._options["interval"])
        if away is not None:
            raise away

    def _json(self, away: LockUnavailable | None) -> None:
        page = None if away is not None else self._page
        self._printer.json(
            {
                "at": datetime.now(UTC),
                "error": None if away is None else str(away),
                "list": None if page is None else as_document(page),
            }
        )
        self._printer.raw("")  # flushes

    def _lines(self, away: LockUnavailable | None) -> Iterator[str]:
        style = self._printer.style
        title = f"Locks on {using_of(self._options)!r}, {instant(datetime.now(UTC))}"
        yield style.MIGRATE_LABEL(title)
        if away is not None:
            yield style.ERROR(clean(str(away)))
            if self._screen.rows is None or self._page is None:
                return
            yield f"As it was at {instant(self._updated)}:"
        elif self._screen.rows is not None:
            yield ""
        if self._page is not None:
            wide = self._options["output"] == "wide"
            yield from as_lines(self._page, self._printer, wide=wide)
            for line in left_out(self._where):
                yield style.ERROR(clean(line))

    def _limit(self) -> int | None:
        limit: int | None = self._options["limit"]
        if self._screen.rows is None:
            return limit
        room = max(1, self._screen.rows - _AROUND)
        return room if limit is None else min(limit, room)
