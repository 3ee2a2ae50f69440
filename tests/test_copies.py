"""Lock objects that are copied or pickled, as `setUpTestData` and process pools do it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis import Redis

from django_redislock import (
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    deduplicate,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.contrib.once import once_in_transaction
from django_redislock.views import idempotent_view, lock_view
from tests.waiting import PATIENCE, eventually


def respond(_request: HttpRequest) -> HttpResponse:
    """A view, under a name by which pickle finds it."""
    return HttpResponse()


MAKERS: dict[str, Callable[[], Any]] = {
    "redis_lock": lambda: redis_lock("job", ttl=7, wait=0),
    "Semaphore": lambda: Semaphore("job", 2, wait=0),
    "MultiLock": lambda: MultiLock(["job", "other"], wait=0),
    "ReadWriteLock.read": lambda: ReadWriteLock("job", wait=0).read(),
    "TimestampLock": lambda: TimestampLock("lock.copies", wait=0),
    "once": lambda: once("job"),
    "deduplicate": lambda: deduplicate("job"),
}
"""Locks that a block can enter."""
OTHERS: dict[str, Callable[[], Any]] = {
    "ReadWriteLock": lambda: ReadWriteLock("job"),
    "single_flight": lambda: single_flight("job", ttl=60, serializer=pickle),
    "lock_view": lambda: lock_view("job", max_waiters=1),
    "idempotent_view": lambda: idempotent_view(scope=respond),
    "idempotent_view in the database": lambda: idempotent_view(store="db"),
    "once_in_transaction": lambda: once_in_transaction("job"),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda it: pickle.loads(pickle.dumps(it)),
}
way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@way
@pytest.mark.parametrize("make", [*MAKERS.values(), *OTHERS.values()], ids=[*MAKERS, *OTHERS])
def test_a_free_one(make: Callable[[], Any], way: Callable[[Any], Any]) -> None:
    """The copy is the same lock."""
    lock = make()
    assert repr(way(lock)).partition(" at ")[0] == repr(lock).partition(" at ")[0]


@way
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_that_is_held(
    redis: Redis, make: Callable[[], Any], way: Callable[[Any], Any]
) -> None:
    """A copy that is made in its block holds nothing, and works like any other lock; the block is
    left as if there were none."""
    redis.delete("lock.copies")
    lock = make()
    with lock:
        twin = way(lock)
    with twin:
        pass
    assert not redis.exists("redislock:{job}", "redislock:{other}", "lock.copies")


def test_a_function_that_shares_its_result(redis: Redis) -> None:
    """A copy of its decorator decorates another function."""
    flight = way_of_pickle(single_flight("job", ttl=60))
    assert flight(lambda: {"rate": 1})() == {"rate": 1}
    assert single_flight("job", ttl=60)(lambda: {"rate": 2})() == {"rate": 1}


def way_of_pickle(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


def test_a_view_that_has_waiters(redis: Redis) -> None:
    """The requests that wait for a view do not wait for its copy."""
    original = lock_view("job", max_waiters=1, wait=PATIENCE)
    first = original(respond)
    with redis_lock("job"):
        waiting = threading.Thread(target=lambda: first(RequestFactory().get("/")))
        waiting.start()
        eventually(lambda: redis.exists("redislock:{job}:queue"))
        assert not copy.deepcopy(original)._asking
    waiting.join(PATIENCE)
