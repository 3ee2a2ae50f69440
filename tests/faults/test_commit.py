"""A process that dies at the COMMIT of its work. With a record in the database, nothing of it is
lost, and nothing is done twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from devtools.postgres_server import PostgresServer
from tests.conftest import asks_for_postgres
from tests.processes import Worker

Run = Callable[..., list[str]]

PROGRAMS = "tests.faults.commit_programs"


class Shop:
    """A project with a database of its own."""

    def __init__(self, start: Callable[..., Worker], redis: Redis, **database: Any) -> None:
        self._start, self._redis, self.database = start, redis, database
        assert self.run("prepare") == "ready"

    def run(self, program: str, *arguments: str) -> str:
        """What one process says: "" if it was killed before."""
        environ = {
            "DJANGO_SETTINGS_MODULE": "tests.faults.commit_settings",
            "REDISLOCK_TEST_DATABASE": json.dumps(self.database),
        }
        worker = self._start(f"{PROGRAMS}:{program}", *arguments, env=environ)
        said = worker.says()
        worker.ends()
        # As if the lease of one that died had ended.
        for key in self._redis.keys("redislock:{*}"):
            self._redis.delete(key)
        return said


@pytest.fixture
def on_sqlite(start: Callable[..., Worker], redis: Redis, tmp_path: Path) -> Shop:
    engine = "django.db.backends.sqlite3"
    return Shop(start, redis, ENGINE=engine, NAME=str(tmp_path / "shop.sqlite3"))


@pytest.fixture
def on_postgres(start: Callable[..., Worker], redis: Redis) -> Iterator[Shop]:
    with PostgresServer() as server:
        yield Shop(
            start,
            redis,
            ENGINE="django.db.backends.postgresql",
            HOST=server.directory,
            USER="postgres",
            NAME="postgres",
        )


@pytest.fixture(
    params=[
        "on_sqlite",
        pytest.param("on_postgres", marks=pytest.mark.django_db(databases=["postgres"])),
    ]
)
def shop(request: pytest.FixtureRequest) -> Shop:
    assert asks_for_postgres(request.node) == (request.param == "on_postgres")
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("around", ["own", "request"])
def test_killed_after_the_commit(shop: Shop, around: str) -> None:
    """The payment was made, and its response is there: nobody pays twice."""
    assert shop.run("pay", "db", around, "after") == ""
    assert shop.run("pay", "db", around, "never") == "200 payment 1 of 1"


@pytest.mark.parametrize("around", ["own", "request"])
def test_killed_before_the_commit(shop: Shop, around: str) -> None:
    """Neither the payment nor its response is there: the next request pays."""
    assert shop.run("pay", "db", around, "before") == ""
    assert shop.run("pay", "db", around, "never") == "200 payment 1 of 1"
    assert shop.run("pay", "db", around, "never") == "200 payment 1 of 1"


def test_with_a_record_at_redis(on_sqlite: Shop) -> None:
    """There, a crash after the COMMIT leaves work without a record: docs/views.md says so."""
    assert on_sqlite.run("pay", "redis", "request", "after") == ""
    assert on_sqlite.run("pay", "redis", "request", "never") == "200 payment 2 of 2"


def test_killed_in_a_step(on_sqlite: Shop) -> None:
    """What was done before is there, and the next attempt knows that the step had begun."""
    assert on_sqlite.run("charge", "dies") == ""
    assert on_sqlite.run("charge", "lives") == ""  # for a minute, it may still be alive
    with sqlite3.connect(on_sqlite.database["NAME"]) as database:
        database.execute("UPDATE redislock_once_record SET at = datetime('now', '-61 seconds')")
    database.close()
    assert on_sqlite.run("charge", "lives") == "begun 1"
