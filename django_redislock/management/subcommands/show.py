"""`manage.py redislock show`: everything about one lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...base.servers import aliases_of
from ...inspection import (
    SHARED,
    UNREADABLE,
    Inspector,
    Kind,
    LockInfo,
    Past,
    RedlockInspector,
    WaiterInfo,
)
from ...inspection.words import NOTHING, count, duration, holder, holding, instant
from ...settings import conf
from ..arguments import add_json, add_limit, add_using, inspector_of, name_argument
from ..failing import FREE
from ..output import Cell, Column, Printer
from .config import settings_document, settings_table
from .list import state_paint

_KINDS = {
    Kind.SEMAPHORE: "semaphore",
    Kind.READ: "read-write lock, held for reading",
    Kind.WRITE: "read-write lock, held for writing",
}
_WANTS = {Kind.READ: "to read, ", Kind.WRITE: "to write, "}
"""Purposes of the waiters of a read-write lock."""

_ALL = 100_000
"""More waiters than one lock can have."""

_BEFORE = (
    Column("BEFORE", shrinks=True),
    Column("SINCE"),
    Column("FOR", right=True),
    Column("THEN", shrinks=True),
    Column("LABEL", shrinks=True),
)
_HOLDERS = (
    Column("HOLDER", shrinks=True),
    Column("STATE"),
    Column("HELD FOR", right=True),
    Column("REMAINING", right=True),
    Column("FENCING TOKEN", right=True),
    Column("LABEL", shrinks=True),
)
_WAITERS = (
    Column("", right=True),
    Column("WAITER", shrinks=True),
    Column("FOR", right=True),
    Column("LABEL", shrinks=True),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """The facts about a lock, as they are shown."""

    name: str
    using: str
    lock: LockInfo | None
    waiters: list[WaiterInfo]
    past: Past
    settings: dict[str, conf.Setting]

    @classmethod
    def of(cls, inspector: Inspector | RedlockInspector, name: str, limit: int | None) -> Sheet:
        return cls(
            name=name,
            using=inspector.using,
            lock=inspector.get(name),
            waiters=inspector.waiters(name, limit or _ALL),
            past=inspector.past(name),
            settings=conf.origins(name),
        )

    def document(self) -> dict[str, Any]:
        """The facts, for JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "state": "free" if self.lock is None else self.lock.state,
            "settings": settings_document(self.settings),
        }

    def lines(self, printer: Printer) -> Iterator[str]:
        for title, text in self._facts(printer):
            yield printer.fact(title, text, 17)
        yield ""
        if self.lock is not None and self.lock.kind in SHARED:
            yield from self._holders(self.lock, printer)
            yield ""
        if self.past.holders:
            yield from self._before(printer)
            yield ""
        if self.past.unreadable:
            yield f"Before: {UNREADABLE}."
            yield ""
        yield from self._queue(printer)
        yield ""
        yield from settings_table(self.settings, printer)

    def _facts(self, printer: Printer) -> Iterator[tuple[str, str]]:
        where = ", ".join(map(repr, aliases_of(self.using)))
        yield "Lock", f"{self.name} (on {where})"
        lock = self.lock
        if lock is None:
            yield "State", "free"
            if self.past.fencing_token is not None:
                yield "Fencing token", f"{self.past.fencing_token}, of the last holder"
            return
        text = state_paint(lock.state, printer)(lock.state)
        yield "State", f"{text}: {lock.why}" if lock.why else text
        if lock.kind in SHARED:
            yield "Kind", _KINDS[lock.kind]
            yield "Held by", holding(lock)
            return
        yield "Holder", holder(lock)
        yield "Label", lock.holder.label or NOTHING
        if lock.holder.acquired_at is not None:
            since = instant(lock.holder.acquired_at)
            yield "Held", f"since {since}, for {duration(lock.holder.held)}"
        yield "Remaining", _remaining(lock)
        yield "Fencing token", str(lock.holder.fencing_token or NOTHING)

    def _holders(self, lock: LockInfo, printer: Printer) -> Iterator[str]:
        rows = [
            [
                Cell(one.holder.owner or NOTHING),
                Cell(one.state, state_paint(one.state, printer)),
                Cell(duration(one.holder.held)),
                Cell(duration(one.holder.remaining)),
                Cell(str(one.holder.fencing_token or NOTHING)),
                Cell(one.holder.label),
            ]
            for one in lock.holders
        ]
        yield from printer.table(_HOLDERS, rows)

    def _before(self, printer: Printer) -> Iterator[str]:
        rows = [
            [
                Cell(past.owner or NOTHING),
                Cell(instant(past.acquired_at)),
                Cell(duration(past.lasted)),
                Cell(f"{past.ending} {past.why}".rstrip()),
                Cell(past.label),
            ]
            for past in self.past.holders
        ]
        yield from printer.table(_BEFORE, rows)

    def _queue(self, printer: Printer) -> Iterator[str]:
        if not self.waiters:
            yield "Nobody waits."
            return
        number = len(self.waiters) if self.lock is None else self.lock.waiters
        rows = [
            [
                Cell(str(waiter.position + 1)),
                Cell(waiter.owner or NOTHING),
                Cell(duration(waiter.waited)),
                Cell(f"{_WANTS.get(waiter.kind, '')}{waiter.label}"),
            ]
            for waiter in self.waiters
        ]
        yield from printer.table(_WAITERS, rows)
        if number > len(rows):
            yield f"The first {len(rows)} of {count(number, 'waiter')}."


def _remaining(lock: LockInfo) -> str:
    if lock.holder.remaining is None:
        return "no TTL: it stays until somebody deletes it"
    text = duration(lock.holder.remaining)
    return text if lock.ttl is None else f"{text} of {duration(lock.ttl)}, unless it is renewed"


class Show:
    help = "Show one lock: its holders, its waiters, its past and its settings."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_argument, help="The lock.")
        add_limit(parser, "waiters")
        add_using(parser)
        add_json(parser)

    def handle(self, command: BaseCommand, options: dict[str, Any]) -> int:
        printer = Printer(command, options)
        name = options["name"]
        sheet = Sheet.of(inspector_of(options, name), name, options["limit"])
        if options["json"]:
            printer.json(sheet.document())
        else:
            printer.lines(sheet.lines(printer))
        return FREE if sheet.lock is None else 0
