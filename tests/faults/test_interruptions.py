"""Exceptions that come from outside, at every place of our code where they can come."""

from __future__ import annotations

import gc
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connection
from redis import Redis

from django_redislock import Lease, LeaseState, LockError, current_lease, redis_lock
from django_redislock.lease.register import register
from django_redislock.lease.watchdog import watchdog
from django_redislock.settings import conf
from django_redislock.transport.inbox import BACKGROUND, Inbox
from django_redislock.transport.server import server_of
from tests.faults.interruption import BEGINNING, KINDS, Kind, Place, every_place
from tests.faults.operations import (
    BLOCKS,
    OPERATIONS,
    WRITES,
    Entered,
    Operation,
    kept_locks,
    lock_of,
    temporary,
)
from tests.faults.remains import remains, seen
from tests.lines import missing
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


def living(names: Container[str]) -> set[str]:
    """Those of these locks whose leases this process believes to hold, and renews."""
    gc.collect()
    return {
        lease.name
        for lease in gc.get_objects()
        if type(lease) is Lease
        and lease.name in names
        and lease.state in (LeaseState.HELD, LeaseState.UNKNOWN)
    }


def left(redis: Redis, names: Iterable[str]) -> list[str]:
    """Which of these locks are still held, as far as the server knows."""
    return [name for name in names if redis.exists(f"redislock:{{{name}}}")]


def lost() -> int:
    """So many connections of the project's pool are neither idle nor in anybody's hands."""
    return missing(server_of("default").shared_pool())


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a lock was never used, as in production. That is said by a finalizer,
    out of which no exception comes."""
    monkeypatch.setattr(conf, "for_developers", lambda: False)


@pytest.fixture(autouse=True)
def unkept() -> Iterator[None]:
    """No test that fails leaves its locks to the next one."""
    yield
    kept_locks.clear()


@pytest.fixture(autouse=True)
def none_lost() -> Iterator[None]:
    """No test loses a connection."""
    before = lost()
    yield
    eventually(lambda: lost() <= before)


def settled() -> bool:
    """The watchdog owes nothing any more. Those of servers that earlier tests have ended may."""
    return not watchdog(server_of("default"))._to_release


def held_up(places: Iterable[Place]) -> list[str]:
    """Those from which the exception itself has not come out, nor is it the end of a job."""
    return [
        f"{place}: {place.instead}"
        for place in places
        if place.instead and place.instead != repr(Entered(f"{place.raised}: from outside"))
    ]


def nothing_remains(redis: Redis, places: dict[str, Place]) -> None:
    """At the server, in this process or in the pool of connections; by the names of locks.

    Except at a few places at which Python itself enters or leaves a block, or returns a lease, and
    nobody can see it: then the lock ends with its ttl, or else with the lock object.
    """
    assert not held_up(places.values())
    gc.collect()  # what a traceback keeps in a cycle may owe a release
    eventually(settled)
    assert len(left(redis, places)) <= len(places) * 0.04
    for name in living(places):
        assert (places[name].function, places[name].kind) == ("Entered.__exit__", BEGINNING)
    kept_locks.clear()
    eventually(lambda: not living(places))
    # One that stays there keeps its lease alive, and the watchdog busy.
    eventually(lambda: not register(server_of("default")).young, within=5)
    with pytest.raises(LockError):
        current_lease()
    for name in left(redis, places):
        assert redis.ttl(f"redislock:{{{name}}}") > 0
        redis.delete(f"redislock:{{{name}}}")
        redis.zrem("redislock:index", f"redislock:{{{name}}}")
    for name, place in places.items():
        assert not remains(redis, name), str(place)


def interrupted(operation: Operation, kinds: Sequence[Kind], every: int) -> dict[str, Place]:
    """Do it again and again, each time interrupted at another place; by the names of locks."""
    operation("warm up")
    places = every_place(
        lambda number: operation(f"job {number}"),
        kinds=kinds,
        every=every,
        before=partial(temporary, "warm up"),
    )
    return {lock_of(operation, f"job {place.number}"): place for place in places}


@pytest.mark.parametrize(
    ("block", "kinds"),
    [*((temporary, (kind,)) for kind in KINDS), *((block, KINDS) for block in BLOCKS[1:])],
    ids=lambda it: it[0].__name__ if isinstance(it, tuple) else it.__name__,
)
def test_an_interrupted_block(redis: Redis, block: Operation, kinds: tuple[Kind, ...]) -> None:
    """Whatever exception comes, and wherever, entering and leaving included: it goes through,
    nothing remains, nobody believes that it holds the lock, and the same thread can take it again.
    """
    places = interrupted(block, kinds, every=1)
    assert len(places) > 150
    nothing_remains(redis, places)
    for name in places:
        with redis_lock(name, wait=0):
            pass


IN_A_DATABASE = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "operation",
    [*OPERATIONS, *(pytest.param(write, marks=IN_A_DATABASE) for write in WRITES)],
    ids=lambda operation: operation.__name__,
)
def test_an_interrupted_operation(redis: Redis, operation: Operation) -> None:
    """The same, of all else that can be done to a lock; at every second place, since of fewer ones
    chance decides how many are Python's. No transaction stays open, either."""
    places = interrupted(operation, KINDS, every=2)
    assert len(places) > 5
    assert not connection.in_atomic_block
    nothing_remains(redis, places)


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
    for place in every_place(release):
        lease = leases.pop(place.number)
        assert not place.instead
        # What was cut short is released in the background.
        eventually(settled)
        if lease.state == LeaseState.HELD:
            now = seen(redis, lease.name)
            assert now is not None, str(place)
            assert now.token == lease.token, str(place)
        lease.release()
        eventually(lambda lease=lease: not remains(redis, lease.name))
        prepare(place.number + 1)


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
    places = {f"job {place.number}": place for place in every_place(wait)}
    assert len(places) > 300
    eventually(settled)
    assert len(left(redis, places)) <= len(places) * 0.04
    eventually(lambda: not living(places))
    for name in left(redis, places):
        redis_lock(name).clear(reason="it was not released")
    for name, place in places.items():
        assert not remains(redis, name), str(place)
    # Another thread may read the messages, and be the one that asks.
    box = server_of("default").kept(Inbox, "redislock")
    assert not box.awaited
    assert box._reader in (None, BACKGROUND)  # which reads messages for the watchdog
    assert not box._idle
    assert not box._local_queues._tokens
