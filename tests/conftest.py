"""Fixtures for all tests. The Redis itself is started by tests/plugin.py."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management.base import CommandParser
from django.db import connections
from redis import Redis

from devtools.postgres_server import NoPostgresServer, PostgresServer, find_postgres
from devtools.redis_server import RedisServer
from django_redislock import signals
from django_redislock.lease import holds
from django_redislock.lease.watchdog import Watchdog
from django_redislock.management.commands.redislock import Command
from django_redislock.signals import LockEvent
from django_redislock.transport.server import every
from tests.contract.api import Api, AsyncApi, SyncApi
from tests.manage import Manage
from tests.plugin import SERVER
from tests.processes import Worker, all_closed
from tests.recovery import Recovery

TESTS = Path(__file__).parent


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays: modules, and thousands of tests. Otherwise
    a test that collects garbage takes a second for it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> RedisServer:
    """The server that all tests share. A test that harms its server starts one of its own."""
    return pytestconfig.stash[SERVER]


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    """A plain client on the shared server, to look at what ours has done. Answers in bytes."""
    with Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture(scope="session")
def _sweeper(redis_server: RedisServer) -> Iterator[Redis]:
    """A client for all tests: to connect costs more than many a test."""
    with Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_locks_left(_sweeper: Redis) -> None:
    """Begin each test without any key of ours.

    One rule for a private and for an external server, so never FLUSHALL: the keys of others stay.
    """
    keys = list(_sweeper.scan_iter(match="redislock*", count=1000))
    if keys:
        _sweeper.delete(*keys)


@pytest.fixture(autouse=True)
def _no_leases_left() -> None:
    """Begin each test without any lease of this process.

    Else the watchdog goes on asking for those that an earlier test has left, often at a server
    that this test has harmed, and the next test counts its commands or its failures.
    """
    for watchdog in every(Watchdog):
        watchdog.register.lifetimes.clear()
        watchdog.register._tokens.clear()
    holds.current.set(None)  # a test may have left a block without its end


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Make the parser of `manage.py redislock` once. It takes longer to make than most subcommands
    take to run, and parsing changes nothing in it."""
    made: dict[Any, CommandParser] = {}
    make = Command.create_parser

    def create_parser(self: Command, *names: str, **options: Any) -> CommandParser:
        key = names, getattr(self, "_called_from_command_line", False), *sorted(options.items())
        if key not in made:
            made[key] = make(self, *names, **options)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Command, "create_parser", create_parser)
        yield


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start workers; whatever becomes of the test, none is left."""
    with all_closed(Worker) as start:
        yield start


@pytest.fixture(params=[SyncApi, AsyncApi], ids=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A synchronous and an asynchronous way to call a lock."""
    api = request.param()
    yield api
    api.close()


@pytest.fixture
def manage() -> Iterator[Callable[..., Manage]]:
    """Start commands of Django as processes; none is left of these, either."""
    with all_closed(Manage) as start:
        yield start


@pytest.fixture
def learned() -> Iterator[list[str]]:
    """How those that acquire a lock in this process learned that they have it."""
    seen: list[str] = []

    def observer(event: LockEvent) -> None:
        if event.outcome == "acquired":
            seen.append(event.wakeup)

    signals.observe(observer)
    yield seen
    signals.unobserve(observer)


@pytest.fixture
def recovery(request: pytest.FixtureRequest) -> Recovery:
    """Measures how long it takes until locks work again."""
    return Recovery(request.node.nodeid.partition("[")[0])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


SLOW = ("browser", "cluster", "faults", "peers", "servers", "upgrade")
"""Folders of tests that `make test` leaves to `make check`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import none of these folders for tests that are not slow: half of all tests are in them."""
    if config.option.markexpr != "not slow" or collection_path == TESTS:
        return None
    return collection_path.relative_to(TESTS).parts[0] in SLOW or None


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is slow by its folder. In other folders, files and tests are marked one by one."""
    if item.path.relative_to(TESTS).parts[0] in SLOW:
        item.add_marker(pytest.mark.slow)


# PostgreSQL, for tests that ask for it: `@pytest.mark.django_db(databases=["postgres"])`. It is
# started before the test databases are made, and only if one of the chosen tests does so.


def asks_for_postgres(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("django_db")
    return marker is not None and "postgres" in (marker.kwargs.get("databases") or ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where they can't run; fail instead if REDISLOCK_REQUIRE_POSTGRES is set."""
    try:
        import psycopg  # noqa: F401

        find_postgres()
    except (NoPostgresServer, ImportError) as missing:
        asking = [item for item in items if asks_for_postgres(item)]
        if asking and os.environ.get("REDISLOCK_REQUIRE_POSTGRES"):
            raise pytest.UsageError(str(missing)) from missing
        for item in asking:
            item.add_marker(pytest.mark.skip(str(missing).partition("\n")[0]))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """pytest-django calls this before it makes the test databases."""
    asking = filter(asks_for_postgres, request.session.items)
    if all(item.get_closest_marker("skip") for item in asking):
        yield
        return
    with PostgresServer() as server:
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": server.directory,
            "USER": "postgres",
            "NAME": "redislock",
            # Or it could not be made without the default database.
            "TEST": {"DEPENDENCIES": []},
        }
        databases = {**settings.DATABASES, "postgres": database}
        connections.settings["postgres"] = connections.configure_settings(databases)["postgres"]
        yield
