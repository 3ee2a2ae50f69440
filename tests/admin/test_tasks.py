"""Tasks of `unique` and `limited` on the pages of locks."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils.html import strip_tags
from redis import Redis

from django_redislock.tasks import unique
from tests.admin.conftest import LIST
from tests.caches import caches
from tests.operations.calling import AWAY
from tests.tasks.by_hand import Task, task
from tests.tasks.test_operators import lose_leases, park, sync

__all__ = ["sync"]

PAGE = f"{LIST}default_3Atask_3Async_3A7/change/"


def text_of(page: Any) -> str:
    """What a reader sees, in one line."""
    shown = strip_tags(page.content.decode().replace("<wbr>", ""))
    return re.sub(r"\s+", " ", shown).replace("&#x27;", "'")


def row(page: Any, title: str, *first: str) -> list[str]:
    """The cells of a row of a table, without tags."""
    (table,) = [one for one in page.context["tables"] if one.title == title]
    plain = [[strip_tags(str(cell)) for cell in cells] for cells in table.rows]
    (found,) = [
        cells
        for cells in plain
        if all(map(str.startswith, cells, first))  # a label is below
    ]
    return found


@pytest.fixture
def reindex(operator: Client, django_capture_on_commit_callbacks: Any) -> Task:
    """A task that waits in its queue."""
    found = unique("reindex:{pk}")(task(lambda pk: None))
    with django_capture_on_commit_callbacks(execute=True):
        found.enqueue(1)
    return found


class TestALock:
    def test_what_runs_and_what_is_parked(self, operator: Client, sync: Task) -> None:
        """Each with its id, its process and its age, in the order in which they go on."""
        park(sync, 2)
        page = operator.get(PAGE)
        text = text_of(page)
        assert re.search(r"Next: the task m3, parked for \d\.\d s, and 1 more\.", text)
        assert "Parked tasks go on when one of its name begins or ends." in text
        assert "Nothing runs" not in text
        _stage, id, by, age, remaining, *_ = row(page, "Tasks", "running", "m1")
        assert by
        assert re.fullmatch(r"\d\.\d s", age)
        assert re.match(r"\d\d\.", remaining)
        assert id.startswith("m1tests.tasks.test_operators.sync.")
        assert re.fullmatch(r"\d\.\d s", row(page, "Tasks", "parked", "m4")[3])

    def test_more_than_a_page(self, operator: Client, sync: Task, redis: Redis) -> None:
        """A hundred are shown, and how many more there are."""
        park(sync, 1)
        redis.rpush("redislock:{task:sync:7}:parked", *(f"x{number}" for number in range(120)))
        page = operator.get(PAGE)
        (table,) = [one for one in page.context["tables"] if one.title == "Tasks"]
        assert (len(table.rows), table.more) == (100, 23)

    def test_nothing_runs(self, operator: Client, sync: Task, redis: Redis) -> None:
        """The page says what lets the parked ones go on, also when no lock is held."""
        park(sync, 1)
        lose_leases(redis)
        text = text_of(operator.get(PAGE))
        assert "Nobody holds it now." in text
        assert "Write: manage.py redislock sweep --using=default task:sync:7" in text
        redis.delete("redislock:{task:sync:7}:history")
        assert operator.get(PAGE).status_code == 200

    def test_one_that_is_queued(self, operator: Client, reindex: Task) -> None:
        """Nothing has run yet: the page has who queued it, and when."""
        page = operator.get(f"{LIST}default_3Atask_3Areindex_3A1/change/")
        _stage, id, by, age, remaining, *_ = row(page, "Tasks", "queued")
        assert id == "m1tasks/by_hand.py:41 in Task.enqueue"
        assert by
        assert re.fullmatch(r"\d\.\d s", age)
        assert remaining == "1 h 00 min"

    def test_no_task(self, operator: Client, redis: Redis) -> None:
        """A free name of tasks leads to the list, as any other one."""
        assert operator.get(PAGE).status_code == 302


class TestTheList:
    def test_names(self, operator: Client, reindex: Task, sync: Task) -> None:
        """Numbers by name, those with parked tasks first; the name leads to its page."""
        park(sync, 2)
        page = operator.get(LIST)
        table = page.context["summary"]["tasks"]
        rows = [[strip_tags(str(cell)) for cell in cells] for cells in table.rows]
        assert [cells[:5] for cells in rows] == [
            ["task:sync:7", "2", "0", "2", "0"],
            ["task:reindex:1", "0", "0", "0", "1"],
        ]
        assert all(re.fullmatch(r"\d\.\d s", cells[5]) for cells in rows)
        assert f'<a href="{PAGE}">' in page.content.decode()
        assert "Tasks (2)" in text_of(page)

    def test_more_names_than_are_shown(
        self, operator: Client, reindex: Task, sync: Task, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_redislock.admin.cells.SHOWN", 1)
        monkeypatch.setattr("django_redislock.inspection.tasks.AT_ONCE", 1)
        park(sync, 1)
        assert "Tasks (1+)" in text_of(operator.get(LIST))

    def test_none(self, operator: Client) -> None:
        assert operator.get(LIST).context["summary"]["tasks"] is None

    @pytest.mark.parametrize("key", ["parked", "messages", "runs", "claim", "sent"])
    def test_a_damaged_name(
        self, operator: Client, reindex: Task, sync: Task, redis: Redis, key: str
    ) -> None:
        """It is left out, and the others are shown."""
        park(sync, 1)
        redis.delete(f"redislock:{{task:sync:7}}:{key}")
        redis.set(f"redislock:{{task:sync:7}}:{key}", "x")
        page = operator.get(LIST)
        assert page.status_code == 200
        names = [strip_tags(str(cells[0])) for cells in page.context["summary"]["tasks"].rows]
        assert names == ["task:reindex:1"]

    def test_one_server_is_away(self, operator: Client, sync: Task, settings: Any) -> None:
        """The tasks of the other one are shown."""
        park(sync, 1)
        settings.CACHES = {**settings.CACHES, "other": caches(AWAY)["default"]}
        settings.REDISLOCK = {"LOCKS": {"x": {"USING": "other"}}}
        page = operator.get(LIST)
        assert page.status_code == 200
        assert len(page.context["summary"]["tasks"].rows) == 1
