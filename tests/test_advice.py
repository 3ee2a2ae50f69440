"""Advice can be followed: what a message says is written as it stands there, and then the trouble
is gone.

advice.txt is the table: `-` is code that gets a message, as an exception, a warning or a line in
the log; `!` is the part of the message that is pasted, unless it says what to do in words; `+` is
the code as it is then. The hints of checks and of the doctor are in test_hints.py.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import re
import sys
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.management import BaseCommand, CommandError, call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import RequestFactory, TestCase, override_settings
from django.views import View
from django_redis.pool import ConnectionFactory
from redis import Redis
from rest_framework.decorators import api_view
from rest_framework.views import APIView

import django_redislock
from django_redislock import testing
from django_redislock.commands import LockedCommand
from django_redislock.inspection import Inspector
from django_redislock.periodic import job as registry
from django_redislock.periodic import periodic
from django_redislock.transport.server import server_of
from django_redislock.views import idempotent_view, lock_view
from tests.caches import caches, entry
from tests.models import Product
from tests.operations.calling import granted
from tests.processes import ROOT
from tests.waiting import eventually

TABLE = ROOT / "tests" / "advice.txt"


class Advice(NamedTuple):
    trouble: str
    pasted: str
    instead: str


def table() -> Iterator[Advice]:
    for row in TABLE.read_text("utf-8").split("\n\n"):
        lines = [line for line in row.splitlines() if not line.startswith("#")]
        if lines:
            yield Advice(
                *("\n".join(line[2:] for line in lines if line[0] == mark) for mark in "-!+")
            )


# What the code in the table takes for granted.


def post(**more: Any) -> Any:
    return RequestFactory().post("/", **more)


def unowned(decorator: Any, user: Any = None) -> Any:
    """Ask a view with a key that nobody owns."""
    request = post(headers={"idempotency-key": "1", "x-api-key": "2"})
    request.user = user or AnonymousUser()
    return decorator(lambda request: HttpResponse("done"))(request)


def manage(*arguments: str) -> None:
    try:
        call_command("redislock", *arguments)
    except SystemExit as error:
        if error.code:
            raise CommandError(str(error.code)) from error


@contextmanager
def by_hand() -> Iterator[None]:
    """Transactions are managed by hand."""
    connection.set_autocommit(False)
    try:
        yield
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def entries(**urls: Any) -> Any:
    """Entries of CACHES, by their URLs, perhaps with options of the pool."""
    found = {}
    for alias, url in urls.items():
        where, pool = url if isinstance(url, tuple) else (url, {})
        found |= {alias: entry(where, CONNECTION_POOL_KWARGS=pool)}
    ConnectionFactory._pools.clear()
    return override_settings(CACHES=found)


def of_cluster(urls: list[str]) -> Any:
    factory = "django_redislock.cluster.ClusterConnectionFactory"
    return override_settings(CACHES=caches(urls, CONNECTION_FACTORY=factory))


def three_servers() -> Any:
    """There are three, as in memory, where each alias has a server of its own."""
    return in_turn(
        override_settings(CACHES={its: {"BACKEND": "x"} for its in ("default", "a", "b", "c")}),
        testing.locks_in_memory(),
    )


@contextmanager
def in_turn(*contexts: Any) -> Iterator[None]:
    with contexts[0], contexts[1]:
        yield


WORLD: dict[str, Any] = {
    **{name: getattr(django_redislock, name) for name in django_redislock.__all__},
    **{name: getattr(testing, name) for name in testing.__all__},
    **{
        name: value
        for name, value in globals().items()
        if not name.startswith("__") and name not in ("testing", "WORLD")
    },
}


_WITH_A_DATABASE = re.compile(r"\b(transaction|by_hand|Product|fence|release=)\b")


def rows() -> Iterator[Any]:
    for number, row in enumerate(table()):
        wants = _WITH_A_DATABASE.search(row.trouble + row.instead)
        marks = [pytest.mark.django_db(transaction=True)] if wants else []
        yield pytest.param(row, id=str(number), marks=marks)


of_each = pytest.mark.parametrize("row", list(rows()))


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """Let a collection pass over what earlier tests have left: each row has three of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def follow(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> Callable[[str], Callable[[], list[str]]]:
    """Runs code, and returns what returns its messages."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})
    monkeypatch.setattr(registry, "_registry", {})

    def follow(code: str) -> Callable[[], list[str]]:
        # A decorator changes the class that it decorates, so each row has classes of its own.
        views = {view.__name__: type(view.__name__, (view,), {}) for view in (View, APIView)}
        world = {**WORLD, **views, "redis": redis, "__name__": "tests.advice"}
        said: list[str] = []
        gc.collect()  # what other tests have left says nothing about this row
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                exec(compile(code, TABLE.name, "exec"), world)
            except Exception as error:
                said.append(str(error))
            world.clear()
            gc.collect()
        said += [str(warning.message) for warning in warned]
        return lambda: [*said, *(one.getMessage() for one in caplog.records)]

    return follow


@of_each
def test_the_message(row: Advice, follow: Any) -> None:
    """It comes, and has what is pasted."""
    said = follow(row.trouble)
    eventually(lambda: any(row.pasted in message for message in said()))


@of_each
def test_what_it_advises(row: Advice, follow: Any) -> None:
    """Written as it stands there, it gets no message."""
    assert row.pasted in row.instead
    assert follow(row.instead)() == []
