"""`manage.py redislock show` and `config`: everything about one lock, and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...base.servers import aliases_of
from ...inspection import SHARED, UNREADABLE, LockInfo, Past, State, WaiterInfo
from ...inspection.facts import groups
from ...inspection.sheet import FACTS, HOLDERS, PAST, SETTINGS, WAITERS, wants
from ...inspection.story import free_story, kind, silent, story
from ...inspection.words import clean, count, duration
from ...settings import conf
from ..arguments import (
    FREE,
    add_json,
    add_limit,
    add_output,
    add_using,
    command_line,
    find,
    listing,
    name_argument,
)
from ..output import STYLES, Printer

_ALL = 100_000
"""More waiters than one lock can have."""

_FEW = 10
"""Waiters that are shown one by one."""

_GROUPED = 1000
"""Waiters that are grouped at least, where they are not shown one by one."""

_LOOKED_AT = 1000
"""Held locks whose names are compared with one that is free."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The facts about a lock, as they are shown."""

    name: str
    using: str
    lock: LockInfo | None
    waiters: list[WaiterInfo]
    past: Past
    settings: dict[str, conf.Setting]
    similar: list[str]
    """Names of held locks that are nearly the same, if this one is free."""
    given: dict[str, Any] = field(repr=False)
    """The options with which it was found."""
    wide: bool = field(repr=False)

    @classmethod
    def of(cls, options: dict[str, Any]) -> Sheet:
        name, limit = options["name"], options["limit"] or _ALL
        inspector, lock = find(options, name)
        wide = options["output"] == "wide"
        grouped = lock is not None and lock.waiters > _FEW and not (wide or options["json"])
        return cls(
            name=name,
            using=inspector.using,
            lock=lock,
            waiters=inspector.waiters(name, max(limit, _GROUPED) if grouped else limit),
            past=inspector.past(name),
            settings=conf.origins(conf.written(name)),
            similar=[] if lock else _similar(name, options),
            given={"using": options["using"], "cache-locks": options["cache_locks"]},
            wide=wide,
        )

    def document(self) -> dict[str, Any]:
        """The facts, for JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self) if field.repr},
            "state": "free" if self.lock is None else self.lock.state,
            "settings": settings_document(self.settings),
        }

    def lines(self, printer: Printer) -> Iterator[str]:
        where = ", ".join(map(repr, aliases_of(self.using)))
        yield printer.style.MIGRATE_HEADING(f"{clean(self.name)} on {where}")
        yield from self._story(printer)
        yield ""
        yield from printer.facts(self._facts(), 17)
        if self.lock is not None and self.lock.kind in SHARED:
            yield ""
            yield from printer.table(HOLDERS, self.lock.holders, wide=self.wide)
        if self.waiters:
            yield ""
            yield from self._queue(printer)
        if self.past.holders:
            yield ""
            yield from printer.table(PAST, self.past.holders, wide=self.wide)
        if self.past.unreadable:
            yield ""
            yield f"Before: {UNREADABLE}."
        if self.lock is None or not self.lock.cache_lock:
            yield ""
            yield from self._settings(printer)

    def _story(self, printer: Printer) -> Iterator[str]:
        if self.lock is None:
            yield from map(clean, free_story(self.past))
            if self.similar:
                yield f"Held are: {', '.join(map(repr, map(clean, self.similar)))}."
            return
        for number, sentence in enumerate(story(self.lock, self.waiters)):
            style = STYLES[self.lock.state] if number == 1 else ""
            yield printer.paint(clean(sentence), style)
        if self.lock.state in (State.BROKEN, State.STALE):
            yield f"To clear it: {command_line('clear', self.given, [self.name])}"

    def _facts(self) -> Iterator[tuple[str, Any]]:
        lock = self.lock
        if lock is None:
            if self.past.fencing_token is not None:
                yield "fencing token", f"{self.past.fencing_token}, of the last holder"
            return
        yield from (("state", lock.state), ("kind", kind(lock)))
        yield from ((column.title, column.value(lock)) for column in FACTS)

    def _queue(self, printer: Printer) -> Iterator[str]:
        number = len(self.waiters) if self.lock is None else self.lock.waiters
        if len(self.waiters) > _FEW and not self.wide:
            for group in groups(self.waiters):
                silence = silent(group.waiters[0])
                yield (
                    f"{group.number} × {clean(group.host)}, {clean(wants(group))}; "
                    f"oldest {duration(group.oldest)}{silence and f'; {silence}'}"
                )
        else:
            yield from printer.table(WAITERS, self.waiters, wide=self.wide)
        if number > len(self.waiters):
            yield f"These are the first {len(self.waiters)} of {count(number, 'waiter')}."

    def _settings(self, printer: Printer) -> Iterator[str]:
        told = self.settings
        if not self.wide:
            told = {term: its for term, its in told.items() if its.source != "default"}
        if told:
            yield from settings_table(told, printer)
        else:
            yield f"Settings: the defaults. See {command_line('config', {}, [self.name])}"


def _similar(name: str, options: dict[str, Any]) -> list[str]:
    """Return the names of held locks that look like this one; of many locks, the urgent ones."""
    held = listing(options).page(limit=_LOOKED_AT).items
    return get_close_matches(name, [lock.name for lock in held], n=3, cutoff=0.75)


class Show:
    help = "Show one lock: its holders, its waiters, its past and its settings."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_argument, help="The lock.")
        add_limit(parser, "waiters")
        add_using(parser)
        add_output(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        sheet = Sheet.of(options)
        if options["json"]:
            printer.json(sheet.document())
        else:
            printer.lines(sheet.lines(printer))
        return FREE if sheet.lock is None else 0


def settings_document(found: dict[str, conf.Setting]) -> dict[str, conf.Setting]:
    """The settings under the keys that they have in Django's settings."""
    return {term.upper(): setting for term, setting in found.items()}


def settings_table(found: dict[str, conf.Setting], printer: Printer) -> Iterator[str]:
    return printer.table(SETTINGS, settings_document(found).items())


class Config:
    help = "Show the settings of a lock, and where each comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_argument, help="The lock.")
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        found = conf.origins(conf.written(options["name"]))
        if options["json"]:
            printer.json({"name": options["name"], "settings": settings_document(found)})
        else:
            printer.lines(settings_table(found, printer))
            printer.line()
            printer.line("Arguments in the code override these settings.")
        return 0
