"""`redislock records`: count the records in the database, and delete old ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_redislock.commands import USAGE
from django_redislock.contrib.once.models import Record
from django_redislock.management.arguments import MISCONFIGURED
from django_redislock.management.subcommands import records
from tests.operations.calling import Done, call

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def add(number: int, *, days: float, done: bool = True, using: str = "default") -> None:
    Record.objects.using(using).bulk_create(
        Record(
            pk=f"{days}-{number}",
            name="job",
            token="t",
            done=done,
            value=b"",
            at=timezone.now() - timedelta(days=days),
        )
        for number in range(number)
    )


def left() -> int:
    return Record.objects.count()


def test_how_many() -> None:
    """Without arguments, it counts."""
    add(2, days=1)
    add(1, days=40, done=False)
    assert call("records").out == "3 records on 'default', 1 of them unfinished.\n"


def test_a_dry_run() -> None:
    """It says what to paste, and deletes nothing."""
    add(2, days=40)
    add(3, days=29)
    assert call("records", "--older-than", "30d").out == (
        "2 records on 'default' older than 30d, 0 of them unfinished.\n"
        "Nothing was done. To delete them:\n"
        "  manage.py redislock records --older-than=30d --delete\n"
    )
    assert left() == 5
    assert "Nothing was done" not in call("records", "--older-than", "50d").out


def test_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No statement deletes more rows than that, and all are deleted."""
    monkeypatch.setattr(records, "BATCH", 2)
    add(5, days=40)
    add(3, days=29)
    with CaptureQueriesContext(connection) as queries:
        done = call("records", "--older-than", "30d", "--delete")
    assert done.out == "Deleted 5 records on 'default' older than 30d, 0 of them unfinished.\n"
    assert sum(query["sql"].startswith("DELETE") for query in queries) == 3
    assert left() == 3


@pytest.mark.parametrize(("age", "kept"), [("90m", 0), ("100m", 1), ("1h", 0), ("2h", 1)])
def test_ages(age: str, kept: int) -> None:
    add(1, days=95 / 24 / 60)
    call("records", "--older-than", age, "--delete")
    assert left() == kept


def test_json() -> None:
    """For programs."""
    add(1, days=40)
    add(1, days=50, using="other")
    add(1, days=1, done=False, using="other")

    def item(done: Done) -> Any:
        (one,) = done.json["items"]
        return one

    there = item(call("records", "--database", "other", "--json"))
    assert there.pop("oldest") < timezone.now().isoformat()
    assert there == {"database": "other", "records": 2, "unfinished": 1}
    done = call("records", "--database", "other", "--older-than", "30d", "--delete", "--json")
    assert done.json["done"] is True
    assert item(done)["records"] == 1
    assert item(call("records", "--older-than", "50d", "--json")) == {
        "database": "default",
        "records": 0,
        "unfinished": 0,
        "oldest": None,
    }
    assert (left(), Record.objects.using("other").count()) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [["--delete"], ["--older-than", "30"], ["--older-than", "x"], ["--older-than", "-1d"]],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert call("records", *arguments).code in (USAGE, 1)


def test_without_the_app() -> None:
    """It says what to write."""
    with override_settings(INSTALLED_APPS=["django_redislock", "tests"]):
        done = call("records")
    assert done.code == MISCONFIGURED
    assert "INSTALLED_APPS +=" in done.err
