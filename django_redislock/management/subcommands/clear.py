"""`manage.py redislock clear`: take locks away from their holders.

Only what was shown is cleared. Within one run, each lock is bound to the lease that was seen.
`--as-of` binds a run to the dry run before it: a lock that was acquired after that time, by the
server's clock, belongs to somebody else and stays.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError

from ...base.exceptions import LockUnavailable
from ...commands import BUSY, UNAVAILABLE, USAGE
from ...inspection import HolderInfo, Inspector, LockInfo, State
from ...inspection.clearing import ClearOutcome, Target
from ...inspection.sheet import LOCKS
from ...inspection.story import consequences, consequences_of_all, holder, holder_name, safer
from ...inspection.words import clean, count, duration
from ..arguments import (
    FREE,
    PLACEHOLDER,
    WRONG,
    Parser,
    command_line,
    find,
    listing,
    name_argument,
    operator,
    reason_argument,
    using_of,
)
from ..output import Printer

_EXIT_CODES = {
    ClearOutcome.UNKNOWN: UNAVAILABLE,
    ClearOutcome.REFUSED: WRONG,
    ClearOutcome.CHANGED: BUSY,
    ClearOutcome.FREE: FREE,
}
"""The first of these outcomes that occurred decides."""


class Clear:
    help = "Take locks away from their holders. Without --yes it says what that does, and asks."

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument(
            "names", metavar="NAME", nargs="*", type=name_argument, help="The locks."
        )
        parser.add_argument("--pattern", help="All locks whose names match, as in 'invoice:*'.")
        parser.flag("--stale", "Only locks whose holders can't come back.")
        parser.host()
        parser.yes()
        parser.reason("The reason, which the holder sees. Needed with --yes.")
        parser.by()
        parser.add_argument(
            "--as-of",
            type=_time_argument,
            metavar="TIME",
            help="Leave alone locks acquired after this time, which a dry run prints.",
        )
        parser.using()
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        many = options["stale"] or options["pattern"] is not None
        if bool(options["names"]) == many:
            raise CommandError("Write names, or --pattern, --stale or both.", returncode=USAGE)
        if options["yes"] and not options["reason"]:
            said = "With --yes write a --reason; the holder sees it."
            raise CommandError(said, returncode=USAGE)
        targets = list(_targets(options))
        _Clearing(targets, options, printer).run()
        outcomes = {target.outcome for target in targets}
        return next((code for outcome, code in _EXIT_CODES.items() if outcome in outcomes), 0)


def _time_argument(text: str) -> datetime:
    with suppress(ValueError):
        if (time := datetime.fromisoformat(text)).tzinfo is not None:
            return time
    raise ArgumentTypeError(
        f"write a time with a time zone, such as 2026-01-31T12:00:00+00:00, not {text!r}"
    )


def _targets(options: dict[str, Any]) -> Iterator[Target]:
    if options["names"]:
        for name in dict.fromkeys(options["names"]):
            where, lock = find(options, name)
            yield Target(name, where, lock and lock.only(_meant(options)))
        return
    using = using_of(options)
    states = [State.STALE] if options["stale"] else []
    host = options["host"]
    page = listing(options).page(
        pattern=options["pattern"] or "*", states=states, host=host, limit=None
    )
    for lock in page.items:
        narrowed = lock.only(_meant(options))
        if narrowed is not None:
            where = Inspector(using, cache_locks=lock.cache_lock)
            yield Target(lock.name, where, narrowed)


def _meant(options: dict[str, Any], as_of: datetime | None = None) -> Callable[[HolderInfo], bool]:
    """Return a filter for the holders that the options mean, and who held the lock at a time."""
    return lambda one: (
        (one.state == State.STALE or not options["stale"])
        and (one.holder.owner or "").startswith(options["host"])
        and not one.holder.came_after(as_of)
    )


def seen_at(locks: list[LockInfo]) -> datetime | None:
    """The time at which locks were read, by the server's clock; None if none of them says.

    The earliest time counts: a holder who came while later locks were read was not shown.
    """
    times = (one.holder.seen_at for lock in locks for one in lock.holders)
    return min((time for time in times if time is not None), default=None)


class _Clearing:
    """One run: clears the targets, or previews it, and reports."""

    def __init__(self, targets: list[Target], options: dict[str, Any], printer: Printer) -> None:
        self._targets = targets
        self._options = options
        self._printer = printer
        self._say = printer.line
        self._by: str = options["by"] or operator()
        self._reason = options["reason"] or ""
        self._done = False

    def run(self) -> None:
        for target in self._targets:
            target.keep(_meant(self._options, self._options["as_of"]))
        if self._options["yes"] or (self._preview() and self._confirmed()):
            self._clear()
        self._printer.write(self._document())

    def _clear(self) -> None:
        """Clear one after the other and report each at once, so that an interrupted run shows
        how far it came."""
        asking = True
        self._done = True
        for target in self._targets:
            if asking and target.outcome in (ClearOutcome.NOT_ASKED, ClearOutcome.WOULD):
                # Once Redis is away, each further target would take as long to fail.
                as_of = self._options["as_of"] or seen_at([target.lock] if target.lock else [])
                # None who came after the first reading.
                wanted = _meant(self._options, as_of)
                asking = target.clear_all(self._by, self._reason, wanted)
            self._say(self._report(target))
        cleared = [one for one in self._targets if one.outcome == ClearOutcome.CLEARED]
        self._say(f"{len(cleared)} of {count(len(self._targets), 'lock')} cleared.")
        if cleared:
            self._say("Holders that are still alive learn of it at their next renewal.")
        if len(cleared) == 1 and not self._options["json"]:
            with suppress(LockUnavailable):
                now = cleared[0].inspector.get(cleared[0].name)
                who = "Nobody holds it" if now is None else f"It is held by {holder(now)}"
                self._say(clean(f"{who} now."))

    def _preview(self) -> list[LockInfo]:
        """Show what would be cleared, and what that does. Return these locks."""
        locks = []
        for target in self._targets:
            if target.outcome == ClearOutcome.NOT_ASKED and target.lock is not None:
                target.outcome = ClearOutcome.WOULD
                locks.append(target.lock)
            else:
                self._say(self._report(target))
        if not locks:
            self._say("There is nothing to clear.")
            return []
        self._printer.lines(self._printer.table(LOCKS, locks))
        self._say()
        self._printer.lines(self._warnings(locks))
        if not self._asks:
            self._say("Nothing was done. To clear what is shown here, write why and paste:")
            self._say(f"  {self._command(locks)}")
        return locks

    def _warnings(self, locks: list[LockInfo]) -> list[str]:
        if self._options["json"]:
            return []
        if len(locks) > 1:
            return [" ".join(consequences_of_all(locks))]
        (target,) = (one for one in self._targets if one.lock is locks[0])
        waiters = target.inspector.waiters(locks[0], 1)
        return [" ".join(consequences(locks[0], waiters)), safer(locks[0])]

    @property
    def _asks(self) -> bool:
        """Whether somebody is there to answer."""
        return self._printer.terminal and sys.stdin.isatty()

    def _confirmed(self) -> bool:
        """Ask whether to clear, and why."""
        if not self._asks:
            return False
        try:
            answer = input("Clear? [y/N] ")
            while answer.strip().casefold() in ("y", "yes"):
                if self._reason:
                    return True
                with suppress(ArgumentTypeError):
                    self._reason = reason_argument(input("Why? The holder sees it: "))
        except EOFError:
            self._say()
        except KeyboardInterrupt:
            self._say()
            raise CommandError("Nothing was done.", returncode=128 + signal.SIGINT) from None
        self._say("Nothing was done.")
        return False

    def _report(self, target: Target) -> str:
        style = self._printer.style
        paint = style.SUCCESS if target.outcome == ClearOutcome.CLEARED else style.ERROR
        return str(paint(_sentence(target)))

    def _command(self, locks: list[LockInfo]) -> str:
        options = self._options
        as_of = options["as_of"] or seen_at(locks)
        given = {term: options[term] for term in ("pattern", "using", "by", "host", "stale")}
        given |= {
            "cache-locks": options["cache_locks"],
            "as-of": as_of and as_of.isoformat(),
            "yes": True,
            "reason": options["reason"] or PLACEHOLDER,
        }
        return command_line("clear", given, options["names"])

    def _document(self) -> dict[str, Any]:
        locks = [target.lock for target in self._targets if target.lock is not None]
        return {
            "done": self._done,
            "by": self._by,
            "reason": self._reason or None,
            "as_of": self._options["as_of"] or seen_at(locks),
            "items": self._targets,
        }


def _sentence(target: Target) -> str:
    held = ""
    if target.lock is not None and target.lock.holding:
        first, *others = target.lock.holders
        time = first.holder.held
        held = f", held by {holder_name(first)}{'' if time is None else f' for {duration(time)}'}"
        held += f", and {len(others)} more" if others else ""
    return clean(
        {
            ClearOutcome.CLEARED: f"Cleared {target.name!r}{held}. {target.error}".strip(),
            ClearOutcome.CHANGED: f"{target.name!r} has changed hands, and was left alone.",
            ClearOutcome.FREE: f"Nobody holds {target.name!r}.",
            ClearOutcome.REFUSED: f"{target.name!r} can't be cleared: {target.error}",
            ClearOutcome.UNKNOWN: f"{target.name!r} may have been cleared, or not: {target.error}",
            ClearOutcome.NOT_ASKED: f"{target.name!r} was left alone.",
        }[target.outcome]
    )
