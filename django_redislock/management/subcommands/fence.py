"""`manage.py redislock fence`: the remedy if rows refuse every new lease.

A fencing token is the server's clock, or more than the last token that the server remembers. If
Redis has lost its data and its clock was set back, the rows of a `FencedModel` have seen larger
tokens than the next leases will have. This command raises the tokens of the next leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, models

from ...commands import USAGE
from ...fencing import FencingTokenField
from ...inspection.words import clean, count, duration
from ...primitives import fence
from ...primitives.contract import run
from ...primitives.fence import Raised
from ...primitives.keys import Keys, validate_name
from ...settings import conf
from ...transport.ports import SyncPort
from ...transport.server import server_of
from ..arguments import Parser, command_line, number_argument, using_of
from ..output import Printer

FIELD = "fencing_token"
LARGEST = 2**52
"""As a time in microseconds it is in the year 2112. Lua can count one by one for as long again."""
A_DAY = 86_400_000_000
"""Microseconds by which the clocks of several servers may differ."""


class _Target(NamedTuple):
    name: str
    seen: int
    """The newest fencing token that was seen."""


class Fence:
    help = (
        "Raise the fencing tokens of locks above those that rows have seen. "
        "Without --yes it only says what it would do."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument(
            "name",
            metavar="NAME",
            help="The lock; with --model also one for each row, such as 'product:{pk}'.",
        )
        parser.add_argument(
            "--model",
            metavar="APP.MODEL",
            help="A model with a fencing token: the newest token that its rows have seen counts.",
        )
        parser.add_argument(
            "--above",
            type=number_argument(1, LARGEST, "a fencing token"),
            metavar="TOKEN",
            help="The newest fencing token that was seen elsewhere.",
        )
        parser.database("The database of the rows; by default the default database.")
        parser.yes()
        parser.flag(
            "--force",
            "Also a token that is more than a day ahead of the clock of Redis. Such tokens "
            "can't be lowered again.",
        )
        parser.using()
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        if (options["model"] is None) == (options["above"] is None):
            raise CommandError("Write --model or --above.", returncode=USAGE)
        items: list[dict[str, Any]] = []
        numbers = dict.fromkeys(_SENTENCES, 0)
        names: dict[str, str] = {}
        """One on each server."""
        for target in _targets(options):
            outcome, found = _raise(target, options)
            names[using_of(options, target.name)] = target.name
            numbers[outcome] += 1
            items.append({**target._asdict(), "outcome": outcome})
            if outcome != "above":
                behind = duration((target.seen - found.next) / 1e6)
                its = _UNREADABLE if found.code == fence.UNREADABLE else _SENTENCES
                printer.line(clean(its[outcome].format(name=repr(target.name), behind=behind)))
        for name in names.values() if options["yes"] else ():
            run(fence.settle(*_where(name, options)))
        printer.write({"done": options["yes"], "items": items}, _sum_up(numbers, options))
        return 0


_SENTENCES = {
    "above": "",
    "would": "{name} is {behind} behind the newest token that was seen.",
    "raised": "Raised {name}, which was {behind} behind.",
}
_UNREADABLE = {
    "would": "The last fencing token of {name} can't be read.",
    "raised": "Raised {name}, whose last fencing token could not be read.",
}


def _sum_up(numbers: dict[str, int], options: dict[str, Any]) -> Iterator[str]:
    if numbers["above"]:
        above = count(numbers["above"], "lock")
        yield f"{above} unchanged: the next fencing token is larger than the newest one seen."
    if options["yes"]:
        yield f"{count(numbers['raised'], 'lock')} raised."
    elif numbers["would"]:
        given = {term: options[term] for term in ("model", "above", "using", "database")}
        given |= {
            "cache-locks": options["cache_locks"],
            "force": options["force"],
            "yes": True,
        }
        yield "Nothing was done. To raise these tokens:"
        yield f"  {command_line('fence', given, [options['name']])}"
    elif not numbers["above"]:
        yield "No row has seen a newer fencing token than the next one."


# Which tokens were seen, for which names.


def _targets(options: dict[str, Any]) -> Iterator[_Target]:
    template = options["name"]
    if options["model"] is None:
        yield _Target(_name(template, options), options["above"])
        return
    rows = _rows(options)
    try:
        fields = [field for _, field, *_ in Formatter().parse(template) if field is not None]
        if not fields:
            newest = rows.aggregate(newest=models.Max(FIELD))["newest"]
            if newest is not None:
                yield _Target(_name(template, options), _seen(newest, options))
            return
        # Rows with older tokens let every new lease write.
        since = _ask("-", 0, options).now_us - A_DAY
        ahead = rows.filter(**{f"{FIELD}__gt": since}).values_list(FIELD, *fields)
        newest_of: dict[str, int] = {}
        for seen, *values in ahead.iterator():
            name = _name(template.format(**dict(zip(fields, values, strict=True))), options)
            newest_of[name] = max(seen, newest_of.get(name, 0))
    except (FieldError, ValueError, KeyError, IndexError) as error:
        raise CommandError(
            f"{template!r} does not name a lock for each row: {error}. Write columns in braces, "
            f"such as 'product:{{pk}}' or 'shop:{{shop__name}}'.",
            returncode=USAGE,
        ) from error
    for name, seen in sorted(newest_of.items()):
        yield _Target(name, _seen(seen, options))


def _rows(options: dict[str, Any]) -> models.QuerySet[Any]:
    try:
        model = apps.get_model(options["model"])
        if not isinstance(model._meta.get_field(FIELD), FencingTokenField):
            raise LookupError(f"its {FIELD} is not a FencingTokenField")
    except (LookupError, ValueError, FieldDoesNotExist) as error:
        raise CommandError(
            f"{options['model']!r} is not a model with a fencing token: {error}", returncode=USAGE
        ) from error
    return models.QuerySet(model, using=options["database"] or DEFAULT_DB_ALIAS).order_by()


def _name(name: str, options: dict[str, Any]) -> str:
    try:
        return name if options["cache_locks"] else validate_name(name)
    except ValueError as error:
        raise CommandError(str(error), returncode=USAGE) from error


def _seen(token: int, options: dict[str, Any]) -> int:
    if token > LARGEST:
        raise CommandError(
            f"A row of {options['model']} has the fencing token {token}, which no lease ever had. "
            f"Write a smaller one into the database."
        )
    return token


# Questions to the server.


def _raise(target: _Target, options: dict[str, Any]) -> tuple[str, Raised]:
    found = _ask(target.name, target.seen, options)
    if found.code == fence.NOTHING_TO_DO:
        return "above", found
    ahead = target.seen - found.now_us
    if ahead > A_DAY and not options["force"]:
        raise CommandError(
            f"The fencing token {target.seen} is {duration(ahead / 1e6)} ahead of the clock of "
            f"Redis: it is mistyped, or that clock is wrong. With --force it counts all the same. "
            f"Tokens can't be lowered again; and until the clock has passed them, only one key of "
            f"Redis knows them: if that key is lost, rows refuse every new lease until you repeat "
            f"this command.",
            returncode=USAGE,
        )
    if not options["yes"]:
        return "would", found
    _ask(target.name, target.seen, options, yes=True)
    return "raised", found


def _ask(name: str, seen: int, options: dict[str, Any], *, yes: bool = False) -> Raised:
    return run(fence.above(*_where(name, options), seen, yes=yes))


def _where(name: str, options: dict[str, Any]) -> tuple[SyncPort, Keys]:
    its, prefix = server_of(using_of(options, name)), conf.prefix()
    by_key = options["cache_locks"]
    keys = Keys.verbatim(prefix, name.encode()) if by_key else Keys.of(prefix, name)
    return SyncPort(its, terms=conf.listed(name).terms()), keys
