"""Exceptions that come from outside, at every place of our code where they can come."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.http import HttpRequest, StreamingHttpResponse
from django.test import RequestFactory
from redis import Redis

from django_redislock import Lease, LeaseState, LockError, current_lease, redis_lock
from django_redislock.views import lock_view
from tests.faults.interruption import BEGINNING, every_place
from tests.faults.remains import remains, seen
from tests.waiting import PATIENCE, eventually

pytestmark = [
    # A coroutine of ours that was interrupted before it was begun.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # The same, collected while a named tuple is made: their __new__ has no builtins, so CPython
    # finds no __import__ to warn with.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <coroutine object:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def temporary(name: str) -> None:
    """A lock that is made for its block."""
    with redis_lock(name):
        pass


kept_locks: dict[str, redis_lock] = {}


def kept(name: str) -> None:
    """A lock that lives longer than its block, as one of a module does."""
    kept_locks[name] = redis_lock(name)
    with kept_locks[name]:
        pass


@redis_lock("{name}")
def function(name: str) -> None:
    """A decorated function."""


@redis_lock("{name}")
def _steps(name: str) -> Iterator[str]:
    yield name


def generator(name: str) -> None:
    """A decorated generator."""
    assert list(_steps(name)) == [name]


def nested(name: str) -> None:
    """A lock that is entered twice."""
    lock = redis_lock(name, reentrant=True)
    with lock, lock:
        pass


def view(name: str) -> None:
    """A locked view, whose response streams."""

    def body(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"one"]))

    response = lock_view(lambda request: name)(body)(RequestFactory().get("/"))
    for closer in response._resource_closers:
        closer()


def living() -> set[str]:
    """The names of the leases that this process believes to hold, and renews."""
    gc.collect()
    return {
        lease.name
        for lease in gc.get_objects()
        if type(lease) is Lease
        # Not what an earlier test has left.
        and re.fullmatch(r"job \d+", lease.name)
        and lease.state in (LeaseState.HELD, LeaseState.UNKNOWN)
    }


def left(redis: Redis, names: Iterable[str]) -> list[str]:
    """Which of these locks are still held, as far as the server knows."""
    return [name for name in names if redis.exists(f"redislock:{{{name}}}")]


@pytest.mark.parametrize("block", [temporary, kept, function, generator, nested, view])
def test_an_interrupted_block(redis: Redis, block: Callable[[str], None]) -> None:
    """Wherever the exception comes, entering and leaving included: nothing remains, nobody
    believes that it holds the lock, and the same thread can take it again.

    Except at a few places at which Python itself enters or leaves a block, and no context manager
    can see it: then the lock ends with its ttl, or else with the lock object.
    """
    temporary("warm up")
    places = {}
    for number, place in every_place(lambda number: block(f"job {number}")):
        places[f"job {number}"] = place
    assert len(places) > 200
    # What could not be released on the spot is released by the watchdog.
    eventually(lambda: len(left(redis, places)) <= len(places) * 0.04)
    for name in living():
        assert (places[name].function, places[name].kind) == ("Lock.__exit__", BEGINNING)
    kept_locks.clear()
    eventually(lambda: not living())
    with pytest.raises(LockError):
        current_lease()
    for name in left(redis, places):
        assert redis.ttl(f"redislock:{{{name}}}") > 0
        redis_lock(name).clear(reason="it was not released")
    for name, place in places.items():
        assert not remains(redis, name), str(place)
        with redis_lock(name, wait=0):
            pass


def test_an_interrupted_release(redis: Redis) -> None:
    """It has released, or it may be repeated: whoever still believes to hold the lock does."""
    temporary("warm up")
    leases: dict[int, Lease] = {}

    def release(number: int) -> None:
        leases[number].release()

    def prepare(number: int) -> None:
        lease = redis_lock(f"job {number}").acquire(wait=0)
        assert lease is not None
        leases[number] = lease

    prepare(1)
    for number, place in every_place(release):
        lease = leases.pop(number)
        now = seen(redis, lease.name)
        if lease.state == LeaseState.HELD:
            assert now is not None, str(place)
            assert now.token == lease.token, str(place)
        lease.release()
        eventually(lambda lease=lease: not remains(redis, lease.name))
        prepare(number + 1)


def test_an_interrupted_wait(redis: Redis, others: ThreadPoolExecutor) -> None:
    """Queueing, waiting, being handed the lock and confirming it: whoever waited has left the
    queue, and has not taken the lock with it."""
    holding, waited = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        """Hold the lock until somebody waits for it, or does so no more."""
        with redis_lock(name, wait=0):
            holding.set()
            eventually(lambda: redis.exists(f"redislock:{{{name}}}:queue") or waited.is_set())

    def wait(number: int) -> None:
        holder = others.submit(hold, f"job {number}")
        assert holding.wait(PATIENCE)
        try:
            with redis_lock(f"job {number}", wait=PATIENCE):
                pass
        finally:
            waited.set()
            holder.result(PATIENCE)
            holding.clear()
            waited.clear()

    wait(0)
    places = {}
    for number, place in every_place(wait):
        places[f"job {number}"] = place
    assert len(places) > 300
    eventually(lambda: len(left(redis, places)) <= len(places) * 0.04)
    eventually(lambda: not living())
    for name in left(redis, places):
        redis_lock(name).clear(reason="it was not released")
    for name, place in places.items():
        assert not remains(redis, name), str(place)
