"""`manage.py redislock show`: everything about one lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...base.servers import aliases_of
from ...inspection import (
    SHARED,
    UNREADABLE,
    HolderInfo,
    Kind,
    LockInfo,
    Past,
    PastHolder,
    State,
    WaiterInfo,
)
from ...inspection.facts import Group, groups
from ...inspection.story import free_story, silent, story
from ...inspection.words import (
    NOTHING,
    clean,
    count,
    duration,
    holder,
    holding,
    instant,
    kind,
    process_name,
)
from ...settings import conf
from ..arguments import (
    FREE,
    add_limit,
    add_output,
    add_using,
    command_line,
    find,
    listing,
    name_argument,
)
from ..output import Column, Printer
from .config import settings_document, settings_table
from .list import STYLES, fencing_token, state

_ALL = 100_000
"""More waiters than one lock can have."""

_FEW = 10
"""Waiters that are shown one by one."""

_GROUPED = 1000
"""Waiters that are grouped at least, where they are not shown one by one."""

_LOOKED_AT = 1000
"""Held locks whose names are compared with one that is free."""

_BEFORE: Sequence[Column[PastHolder]] = (
    Column("BEFORE", lambda past: process_name(past.owner or NOTHING), shrinks=True),
    Column("SINCE", lambda past: instant(past.acquired_at)),
    Column("FOR", lambda past: duration(past.lasted), right=True),
    Column("THEN", lambda past: f"{past.ending} {past.why}".rstrip(), shrinks=True),
    Column("LABEL", lambda past: past.label, shrinks=True),
)
_HOLDERS: Sequence[Column[HolderInfo]] = (
    Column("HOLDER", lambda one: process_name(one.holder.owner or NOTHING)),
    Column("STATE", state),
    Column("HELD FOR", lambda one: duration(one.holder.held), right=True),
    Column("LEASE", lambda one: duration(one.holder.remaining), right=True),
    Column("FENCING TOKEN", fencing_token, right=True),
    Column("LABEL", lambda one: one.holder.label, shrinks=True),
)
_WAITERS: Sequence[Column[WaiterInfo]] = (
    Column("", lambda waiter: str(waiter.position + 1), right=True),
    Column("WAITER", lambda waiter: process_name(waiter.owner or NOTHING)),
    Column("FOR", lambda waiter: duration(waiter.waited), right=True),
    Column("LABEL", lambda waiter: f"{_wants(waiter)}{_silence(waiter, ', ')}", shrinks=True),
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
        for title, text in self._facts():
            yield printer.fact(title, text, 17)
        if self.lock is not None and self.lock.kind in SHARED:
            yield ""
            yield from printer.table(_HOLDERS, self.lock.holders, wide=self.wide)
        if self.waiters:
            yield ""
            yield from self._queue(printer)
        if self.past.holders:
            yield ""
            yield from printer.table(_BEFORE, self.past.holders, wide=self.wide)
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

    def _facts(self) -> Iterator[tuple[str, str]]:
        lock = self.lock
        if lock is None:
            if self.past.fencing_token is not None:
                yield "Fencing token", f"{self.past.fencing_token}, of the last holder"
            return
        yield "State", lock.state
        yield "Kind", kind(lock)
        if lock.kind in SHARED:
            yield "Held by", holding(lock)
            return
        yield "Holder", lock.holder.owner or holder(lock)
        yield "Label", lock.holder.label or NOTHING
        if lock.holder.acquired_at is not None:
            since = instant(lock.holder.acquired_at)
            yield "Held", f"since {since}, for {duration(lock.holder.held)}"
        yield "Lease", _remaining(lock)
        yield "Fencing token", fencing_token(lock)

    def _queue(self, printer: Printer) -> Iterator[str]:
        number = len(self.waiters) if self.lock is None else self.lock.waiters
        if len(self.waiters) > _FEW and not self.wide:
            for group in groups(self.waiters):
                yield (
                    f"{group.number} × {clean(group.host)}, {clean(_wants(group))}; "
                    f"oldest {duration(group.oldest)}{_silence(group.waiters[0], '; ')}"
                )
        else:
            yield from printer.table(_WAITERS, self.waiters, wide=self.wide)
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


def _wants(waiting: WaiterInfo | Group) -> str:
    """The place in the code; for a read-write lock also the purpose."""
    purpose = {Kind.READ: "to read, ", Kind.WRITE: "to write, "}.get(waiting.kind, "")
    return f"{purpose}{waiting.label}"


def _silence(waiter: WaiterInfo, before: str) -> str:
    said = silent(waiter)
    return f"{before}{said}" if said else ""


def _remaining(lock: LockInfo) -> str:
    if lock.holder.remaining is None:
        return "no TTL: it stays until somebody deletes it"
    text = duration(lock.holder.remaining)
    return text if lock.ttl is None else f"{text} of {duration(lock.ttl)}, unless it is renewed"


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
