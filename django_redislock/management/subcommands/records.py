"""`manage.py redislock records`: the records in the database of work that was done once."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import router
from django.db.models import Count, Min, Q
from django.utils import timezone

from ...commands import USAGE
from ...inspection.words import count
from ...locks import in_transaction
from ..arguments import Parser, command_line
from ..output import Printer

BATCH = 500
"""Rows that one statement deletes: no transaction is long, and no lock on many rows."""

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def age_argument(text: str) -> tuple[str, timedelta]:
    """How long ago: `30d`."""
    match = re.fullmatch(r"([0-9]{1,5})([mhd])", text)
    if match is None:
        raise ArgumentTypeError(f"write a number and d, h or m, such as '30d', not {text!r}")
    return text, timedelta(**{_UNITS[match[2]]: int(match[1])})


class Records:
    help = (
        "Count the records in the database, of once_in_transaction() and "
        "idempotent_view(store='db'), or delete the old ones. Without --delete nothing is deleted."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument(
            "--older-than",
            metavar="AGE",
            type=age_argument,
            help="Only records that were changed last before that: 30d, 12h, 90m.",
        )
        delete = "Delete them, 500 at a time. The work of a deleted record may be done again."
        parser.flag("--delete", delete)
        parser.database("The database; by default the one to which records are written.")
        parser.json()

    def handle(self, printer: Printer, options: dict[str, Any]) -> int:
        age, delete = options["older_than"], options["delete"]
        if delete and age is None:
            raise CommandError("With --delete write --older-than.", returncode=USAGE)
        model = in_transaction.records()
        database = options["database"] or router.db_for_write(model)
        rows = model.objects.using(database).order_by("at")
        if age is not None:
            rows = rows.filter(at__lt=timezone.now() - age[1])
        unfinished = Count("pk", Q(done=False))
        found = rows.aggregate(records=Count("pk"), unfinished=unfinished, oldest=Min("at"))
        older = "" if age is None else f" older than {age[0]}"
        which = f"{count(found['records'], 'record')} on {database!r}{older}"
        lines = [f"{which}, {found['unfinished']} of them unfinished."]
        if delete:
            while pks := [*rows.values_list("pk", flat=True)[:BATCH]]:
                rows.filter(pk__in=pks).delete()
            lines = [f"Deleted {lines[0]}"]
        elif age is not None and found["records"]:
            given = {"older-than": age[0], "delete": True, "database": options["database"]}
            paste = f"  {command_line('records', given)}"
            lines += ["Nothing was done. To delete them:", paste]
        printer.write({"done": delete, "items": [{"database": database, **found}]}, lines)
        return 0
