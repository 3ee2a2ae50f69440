"""The examples of docs/notes.md: each goes on where a holder before it has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_redislock import TooManyResumptions, redis_lock
from django_redislock.inspection import Inspector
from django_redislock.periodic import job as registry
from tests.docs.world import examples

CODE = examples("docs/notes.md")


class Numbered:
    """Rows or batches, of which the fifth can't be worked on at first."""

    def __init__(self) -> None:
        self.worked_on: list[int] = []
        self.broken = {5}

    def of(self, after: int) -> list[Any]:
        return [SimpleNamespace(pk=pk, number=pk) for pk in range(after + 1, 9)]

    def work(self, on: Any) -> None:
        if on.pk in self.broken:
            raise ZeroDivisionError
        self.worked_on.append(on.pk)

    @property
    def objects(self) -> Any:
        def found(pk__gt: int) -> Any:
            return SimpleNamespace(order_by=lambda _: self.of(pk__gt))

        return SimpleNamespace(filter=found, count=lambda: 8)


@pytest.fixture
def rows() -> Numbered:
    return Numbered()


@pytest.fixture
def world(rows: Numbered, redis: Redis) -> dict[str, Any]:
    work = dict.fromkeys(("write", "load", "index"), rows.work)
    return {
        "__name__": "shop.docs",
        "redis_lock": redis_lock,
        "Row": rows,
        "Shop": rows,
        "batches": rows.of,
        **work,
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_it_goes_on(number: int, world: dict[str, Any], rows: Numbered) -> None:
    """Nothing is done twice, and nothing is left out."""
    with pytest.raises(ZeroDivisionError):
        exec(CODE[number], world)
    assert rows.worked_on == [1, 2, 3, 4]
    rows.broken.clear()
    exec(CODE[number], world)
    assert rows.worked_on == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_job(
    world: dict[str, Any], rows: Numbered, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    monkeypatch.setattr(registry, "_registry", {})
    exec(CODE[2], world)
    job = world["reindex"]
    with pytest.raises(ZeroDivisionError), redis_lock("reindex"):
        job()
    rows.broken.clear()
    with redis_lock("reindex"):
        job()
    assert rows.worked_on == [1, 2, 3, 4, 5, 6, 7, 8]


def test_work_that_fails_each_time(world: dict[str, Any], redis: Redis) -> None:
    for _ in range(6):
        with pytest.raises(ZeroDivisionError), redis_lock("export:7") as lease:
            lease.note(cursor=5)
            raise ZeroDivisionError
    with pytest.raises(TooManyResumptions, match="redislock forget-note export:7"):
        exec(CODE[4], world)
    assert Inspector().forget_note("export:7")
    exec(CODE[4], world)
