"""`manage.py redislock watch`: the list, drawn again and again."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...base.exceptions import LockUnavailable
from ...inspection import Listing, Page
from ...inspection.words import clean, instant
from ..arguments import interval_argument, limit_argument, listing, using_of
from ..events import Events, Interrupted, require_main_thread
from ..output import Paper, Printer, screen
from .list import add_filters, as_document, as_lines, left_out, matching

_AROUND = 6
"""Lines of a screen without a lock: up to three above, the titles, the totals, one to spare."""


class Watch:
    help = "Show the list, and refresh it until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        add_filters(parser)
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

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        require_main_thread("redislock watch")
        watcher = _Watcher(listing(options), options, Printer(command, options))
        try:
            with Events():
                watcher.run()
        except Interrupted as interrupted:
            if interrupted.number != signal.SIGINT:
                return 128 + interrupted.number
        return 0


class _Watcher:
    def __init__(self, where: Listing, options: dict[str, Any], printer: Printer) -> None:
        self._where = where
        self._options = options
        self._printer = printer
        self._screen = Paper(printer) if options["json"] else screen(printer)
        self._page: Page | None = None
        """The locks when Redis last answered."""
        self._updated = datetime.now(UTC)

    def run(self) -> None:
        """Raise `LockUnavailable` if Redis is away at the end."""
        show = self._json if self._options["json"] else self._draw
        try:
            self._screen.open()
            for number in itertools.count(1):
                away = self._update()
                show(away)
                if number == self._options["count"]:
                    break
                time.sleep(self._options["interval"])
        finally:
            self._screen.close()
        if away is not None:
            raise away

    def _update(self) -> LockUnavailable | None:
        try:
            self._page = matching(self._where, self._options, self._limit())
            self._updated = datetime.now(UTC)
        except LockUnavailable as error:
            return error
        return None

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

    def _draw(self, away: LockUnavailable | None) -> None:
        self._screen.draw(self._lines(away))

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
