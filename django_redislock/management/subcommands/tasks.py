"""`manage.py redislock tasks` and `sweep`: the tasks of `unique` and `limited`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from ...base.exceptions import LockError
from ...commands import BUSY, USAGE
from ...inspection.inspector import servers
from ...inspection.tasks import NAMES, TASKS, Stage, TasksInfo, drop_claim, names, tasks
from ...inspection.words import clean, count, duration
from ...primitives.work import PREFIX
from ...settings import conf
from ...tasks import guarded
from ...tasks.guarded import Swept
from ...tasks.rules import Limit
from ..arguments import FREE, PLACEHOLDER, Parser, command_line, operator, using_of
from ..output import Printer

logger = logging.getLogger("django_redislock")

EVERY = 60.0
"""Seconds between two sweeps of `runperiodic`."""


def _add_name(parser: Parser, help: str) -> None:
    parser.name(help, nargs="?")
    parser.server()


def _found(options: dict[str, Any]) -> list[TasksInfo]:
    """The tasks of one name, or of all that are listed."""
    name = options["name"]
    if name is None:
        return names(using_of(options))
    name = name if conf.written(name).startswith(PREFIX) else PREFIX + name
    return [tasks(name, using_of(options, name))]


class Tasks:
    help = (
        "List the names of tasks of @unique and @limited, or the tasks of one name. With "
        "--drop-claim: forget the task that waits; without --yes it says what that does."
    )

    def add_arguments(self, parser: Parser) -> None:
        _add_name(parser, "Show the tasks of this name.")
        parser.json()
        what = "Let the next call be queued, although one is: for a queue that was purged."
        parser.flag("--drop-claim", what)
        parser.yes()
        why = "The reason. Needed with --yes."
        parser.reason(why)
        parser.by()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        named, dropping = options["name"] is not None, options["drop_claim"]
        if dropping and (not named or (options["yes"] and not options["reason"])):
            said = "With --drop-claim write a NAME, and with --yes a --reason."
            raise CommandError(said, returncode=USAGE)
        found, code = _found(options), 0
        if dropping:
            code, *lines = _drop(found[0], options)
        elif named:
            code, lines = 0 if found[0].items else FREE, [*_sheet(found[0], printer)]
        else:
            lines = [*printer.table(NAMES, found), f"{count(len(found), 'name')}."]
        done = dropping and options["yes"] and not code
        printer.write({"done": done, "items": found}, lines)
        return code


def _sheet(found: TasksInfo, printer: Printer) -> Iterator[str]:
    limit = "" if found.limit is None else f"; at most {found.limit} run"
    numbers = ", ".join(f"{found.counts[stage]} {stage}" for stage in Stage)
    yield clean(f"{found.name} on {found.using!r}: {numbers}{limit}.")
    yield from printer.table(TASKS, found.items)
    yield from map(clean, found.story)


def _drop(found: TasksInfo, options: dict[str, Any]) -> tuple[int, *tuple[str, ...]]:
    """Drop a claim, or say what that does. Return the exit code, and what to say."""
    name, by = clean(found.name), options["by"] or operator()
    if found.claim is None:
        return FREE, f"No task has claimed {name!r}."
    if not options["yes"]:
        its = next(one for one in found.items if one.id == found.claim)
        given = {term: options[term] for term in ("using", "by")}
        given |= {"drop-claim": True, "yes": True, "reason": options["reason"] or PLACEHOLDER}
        claims = f"The task {its.id}, {its.stage} for {duration(its.age)}, has claimed {name!r}."
        return (
            0,
            clean(claims),
            "Without its claim, the next call is queued again.",
            "If its message is still in the queue, it runs, too.",
            "Nothing was done. To drop the claim, write why and paste:",
            f"  {command_line('tasks', given, [found.name])}",
        )
    if drop_claim(found, by=by, reason=options["reason"]):
        return 0, clean(f"Dropped the claim of the task {found.claim} on {name!r}.")
    return BUSY, f"The claim of {name!r} has changed, and was left alone."


def sweep(found: TasksInfo) -> Swept:
    """Heal a name, and send what may go on. Raises `LockUnavailable`.

    The limit is that of those that run, or of the settings. If neither says it, one task goes on,
    and it lets the others go on when it begins.
    """
    limit = found.limit or conf.listed(found.name).limit or 1
    rule = Limit(None, limit, using=found.using)
    return guarded.sweep(rule.of(conf.written(found.name), found.name))


def keep_swept() -> None:
    """Sweep the names of all servers again and again, in a thread of its own: a queue may be slow
    to take a message. A failure is logged once, until it is over."""
    failing: set[str] = set()
    while True:
        time.sleep(EVERY)
        for using in servers():
            try:
                for found in names(using):
                    if found.lapsed or found.counts[Stage.PARKED] or not found.items:
                        sweep(found)
                failing.discard(using)
            except LockError as error:
                level = logging.DEBUG if using in failing else logging.WARNING
                failing.add(using)
                logger.log(level, "Tasks on %r were not swept: %s", using, error)


class Sweep:
    help = (
        "Let parked tasks go on whose predecessors were killed, of one name or of all. "
        "runperiodic does so once a minute."
    )

    def add_arguments(self, parser: Parser) -> None:
        _add_name(parser, "Only this name.")

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        done = [sweep(one) for one in _found(options)]
        healed, promoted = sum(one.healed for one in done), sum(one.promoted for one in done)
        swept = count(len(done), "name")
        printer.line(f"{swept} swept: {healed} tasks healed, {promoted} sent again.")
        return 0
