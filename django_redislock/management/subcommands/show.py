"""`manage.py redislock show` and `config`: everything about one lock, and its settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ...base.servers import aliases_of
from ...inspection import Inspector, LockInfo, Past, State, WaiterInfo
from ...inspection.facts import SHARED, UNREADABLE, NoteInfo, groups
from ...inspection.sheet import HOLDERS, PAST, SETTINGS, WAITERS, facts, settings_of, wants
from ...inspection.story import free_story, kind, silent, story
from ...inspection.tasks import TASKS, TasksInfo, tasks_of
from ...inspection.words import clean, count, duration, instant
from ...settings.conf import Setting
from ..arguments import FREE, Parser, command_line, find, listing
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
class _Report:
    """The facts about a lock, as they are shown. Their names are those of the JSON."""

    name: str
    using: str
    lock: LockInfo | None
    state: str
    waiters: list[WaiterInfo]
    past: Past
    note: NoteInfo | None
    settings: dict[str, Setting]
    similar: list[str]
    """Names of held locks that are nearly the same, if this one is free."""
    tasks: TasksInfo | None
    options: dict[str, Any] = field(repr=False)
    """The options with which it was found."""
    wide: bool = field(repr=False)

    @classmethod
    def of(cls, options: dict[str, Any]) -> _Report:
        name, limit = options["name"], options["limit"] or _ALL
        inspector, lock = find(options, name)
        wide = options["output"] == "wide"
        grouped = lock is not None and lock.waiters > _FEW and not (wide or options["json"])
        return cls(
            name=name,
            using=inspector.using,
            lock=lock,
            state="free" if lock is None else lock.state,
            waiters=inspector.waiters(name, max(limit, _GROUPED) if grouped else limit),
            past=inspector.past(name),
            note=inspector.note(name),
            settings=settings_of(name),
            similar=[] if lock else _similar(name, options),
            tasks=tasks_of(name, aliases_of(inspector.using)[0]),
            options=options,
            wide=wide,
        )

    def lines(self, printer: Printer) -> Iterator[str]:
        lock, past, wide = self.lock, self.past, self.wide
        where = ", ".join(map(repr, aliases_of(self.using)))
        heading = printer.style.MIGRATE_HEADING(f"{clean(self.name)} on {where}")
        holders = lock.holders if lock is not None and lock.kind in SHARED else ()
        tasks, said = (self.tasks.items, self.tasks.story) if self.tasks else ((), ())
        parts: tuple[Iterable[str], ...] = (
            (heading, *self._story(printer), *map(clean, said)),
            printer.facts(self._facts(), 17),
            self._noted(),
            printer.table(HOLDERS, holders, wide=wide),
            printer.table(TASKS, tasks, wide=wide) if tasks else (),
            self._queue(printer) if self.waiters else (),
            printer.table(PAST, past.holders, wide=wide),
            (f"Before: {UNREADABLE}.",) if past.unreadable else (),
            self._settings(printer) if lock is None or not lock.cache_lock else (),
        )
        for number, part in enumerate(filter(None, map(list, parts))):
            yield from ("", *part) if number else part

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
            where = {"using": self.options["using"], "cache-locks": self.options["cache_locks"]}
            yield f"To clear it: {command_line('clear', where, [self.name])}"

    def _facts(self) -> Iterator[tuple[str, Any]]:
        lock = self.lock
        if lock is None:
            if self.past.fencing_token is not None:
                yield "fencing token", f"{self.past.fencing_token}, of the last holder"
            return
        yield from (("state", lock.state), ("kind", kind(lock)))
        yield from ((column.title, column.value(lock)) for column in facts(lock))

    def _noted(self) -> Iterator[str]:
        if self.note is not None:
            when, times = instant(self.note.written_at), count(self.note.resumptions, "time")
            yield f"Noted {when}, inherited {times}: {clean(json.dumps(self.note.content))}"

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
        settings = self.settings.items()
        told = {term: its for term, its in settings if self.wide or its.source != "default"}
        if told:
            yield from printer.table(SETTINGS, [*told.items()])
        else:
            yield f"Settings: the defaults. See {command_line('config', {}, [self.name])}"


def _similar(name: str, options: dict[str, Any]) -> list[str]:
    """Return the names of held locks that look like this one; of many locks, the urgent ones."""
    held = listing(options).page(limit=_LOOKED_AT).items
    return get_close_matches(name, [lock.name for lock in held], n=3, cutoff=0.75)


class Show:
    help = "Show one lock: its holders, its waiters, its past and its settings."

    def add_arguments(self, parser: Parser) -> None:
        parser.name()
        parser.limit("waiters")
        parser.using()
        parser.output()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        report = _Report.of(options)
        printer.write(report, report.lines(printer))
        return FREE if report.lock is None else 0


class ForgetNote:
    help = (
        "Remove what holders have noted for the next one, so that it begins anew. Without --yes "
        "it shows the note."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.name()
        parser.yes()
        parser.server()
        parser.set_defaults(cache_locks=False)

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        name = options["name"]
        inspector, lock = find(options, name)
        note = inspector.note(name)
        if note is None or not isinstance(inspector, Inspector):
            printer.line(f"There is no note of {name!r}.")
            return FREE
        if options["yes"]:
            inspector.forget_note(name)
            printer.line(f"Removed the note of {name!r}.")
            return 0
        printer.line(json.dumps(note.content))
        if lock is not None:
            printer.line("It is held now, and its holder may write another note.")
        printer.line("Nothing was done. To remove the note:")
        given = {"using": options["using"], "yes": True}
        printer.line(f"  {command_line('forget-note', given, [name])}")
        return 0


class Config:
    help = "Show the settings of a lock, and where each comes from."

    def add_arguments(self, parser: Parser) -> None:
        parser.name()
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        found = settings_of(options["name"])
        table = printer.table(SETTINGS, [*found.items()])
        printer.write(
            {"name": options["name"], "settings": found},
            [*table, "", "Arguments in the code override these settings."],
        )
        return 0
