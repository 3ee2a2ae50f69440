"""Who holds a lease, how often, and until when: blocks in blocks, threads and tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseState,
    LockReentered,
    redis_lock,
)
from django_redislock.base import background
from django_redislock.lease import claims
from django_redislock.lease.lifetime import renew
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives.contract import Claim, run
from django_redislock.signals import LockEvent, lock_lost
from django_redislock.transport.ports import BasePort, SyncPort
from django_redislock.transport.server import server_of
from tests.calling import watch
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


def test_a_lease_may_be_entered_twice(redis: Redis) -> None:
    """The outer block runs locked to its end."""
    lease = redis_lock("job").acquire()
    with lease:
        with lease:
            pass
        lease.check()
        assert redis.exists(KEY)
    assert not redis.exists(KEY)
    with pytest.raises(LeaseLost, match="released"), lease:
        raise AssertionError("entered")


async def test_cancel_on_lost_cancels_the_task_that_entered(redis: Redis) -> None:
    """And not the one that acquired the lease and went on to other things."""

    async def work(lease: Lease) -> None:
        async with lease:
            redis.delete(KEY)
            await asyncio.sleep(PATIENCE)

    lease = await redis_lock("job", ttl=0.3, cancel_on_lost=True).aacquire()
    assert lease is not None
    with pytest.raises(LeaseLost):
        await asyncio.create_task(work(lease))
    task = asyncio.current_task()
    assert task.cancelling() == 0


async def test_cancel_on_lost_of_an_inner_block_ends_with_it(redis: Redis) -> None:
    """What is lost afterwards is told to the outer block as it wanted: at its end."""
    reached = False
    with pytest.raises(LeaseLost):
        async with redis_lock("job", ttl=0.3) as lease:
            async with redis_lock("job", reentrant=True, cancel_on_lost=True):
                pass
            redis.delete(KEY)
            while lease.state != LeaseState.LOST:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            reached = True
    assert reached


async def test_cancel_on_lost_of_an_inner_block_ends_it(redis: Redis) -> None:
    """Inside of that block it does cancel."""
    with pytest.raises(LeaseLost):
        async with redis_lock("job", ttl=0.3):
            async with redis_lock("job", reentrant=True, cancel_on_lost=True):
                redis.delete(KEY)
                await asyncio.sleep(PATIENCE)


@pytest.mark.django_db(transaction=True)
def test_transactions_that_come_to_be_managed_by_hand(redis: Redis) -> None:
    """Nobody tells us when those end: it is released, and the caller hears of it, unless an
    error of its own is on its way."""
    try:
        with pytest.raises(TransactionManagementError, match="AUTOCOMMIT"):
            with redis_lock("job", release="commit"):
                connection.ensure_connection()
                transaction.set_autocommit(False)
        assert not redis.exists(KEY)
        transaction.set_autocommit(True)
        with pytest.raises(ZeroDivisionError) as caught:
            with redis_lock("job", release="commit"):
                transaction.set_autocommit(False)
                raise ZeroDivisionError
        assert "AUTOCOMMIT" in caught.value.__notes__[0]
        assert not redis.exists(KEY)
    finally:
        transaction.set_autocommit(True)


def test_clear_removes_what_is_no_text(redis: Redis) -> None:
    """A stranger's value may be any bytes."""
    redis.set(KEY, b"\xff\xfe" * 40)
    assert redis_lock("job").clear(reason="leftover") is not None
    assert not redis.exists(KEY)


def test_a_renewal_does_not_bring_back_a_lost_lease(redis: Redis) -> None:
    """Its own deadline passed before the answer came: others may have held the lock since."""
    lease = redis_lock("job", ttl=0.3, renew=False).acquire()
    watchdog(server_of("default")).forget(lease._claim)

    class Slow(SyncPort):
        async def script(self, *call):  # type: ignore[no-untyped-def]
            answer = await super().script(*call)
            eventually(lambda: not redis.exists(KEY))
            return answer

    run(renew(Slow(server_of("default")), [lease._lifetime], 0.5))
    assert lease.state == LeaseState.LOST


def test_what_cannot_be_released_does_not_stop_the_rest(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody thought of costs one release, not those after it."""
    first, second = redis_lock("first").acquire(), redis_lock("job").acquire()
    real = claims.release

    async def fail(port: SyncPort, claim: Claim) -> object:
        if claim is first._claim:
            raise ZeroDivisionError
        return await real(port, claim)

    monkeypatch.setattr(claims, "release", fail)
    first._abandon()
    second._abandon()
    eventually(lambda: not redis.exists(KEY))
    assert "'first' could not be released" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_inside_of_a_transaction(redis: Redis) -> None:
    """Its ORM works in the thread of the code that called it, and in that one's transaction."""

    async def pay() -> None:
        async with redis_lock("job", release="commit"):
            pass

    with transaction.atomic():
        async_to_sync(pay)()
        assert redis.exists(KEY)
    assert not redis.exists(KEY)


def test_what_is_owed_is_released_before_the_process_ends(
    start: Callable[..., Worker], redis: Redis
) -> None:
    """A rollback is the last thing that it does: no waiter has to wait for the ttl."""
    worker = start("roll_back")
    assert worker.says() == "held"
    assert worker.ends() == 0
    assert not redis.exists(KEY)


@pytest.mark.parametrize("argument", ["by", "reason"])
def test_clear_wants_text(argument: str) -> None:
    """Who and why are read by people."""
    with pytest.raises(TypeError, match=f"{argument} must be a str"):
        redis_lock("job").clear(**{"reason": "x", argument: None})


def test_two_aliases_of_one_server_are_one(redis: Redis, settings: Any) -> None:
    """A thread that would wait for itself is told, under whichever alias."""
    settings.CACHES = {**settings.CACHES, "alias": settings.CACHES["default"]}
    with redis_lock("job"):
        with pytest.raises(LockReentered):
            redis_lock("job", using="alias").acquire(wait=0)


def test_an_answer_that_took_longer_than_the_lease(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that it holds what may have ended: it is asked again."""
    script = BasePort.script
    calls = []

    async def slow(*args: Any) -> object:
        answer = await script(*args)
        calls.append(args)
        if len(calls) == 1:
            eventually(lambda: not redis.exists(KEY))
        return answer

    watch(monkeypatch, slow)
    with redis_lock("job", ttl=0.2, wait=0) as lease:
        assert lease.state == LeaseState.HELD
        assert redis.exists(KEY)
    assert not redis.exists(KEY)


@pytest.mark.parametrize("ends", ["checked", "released"])
def test_to_look_at_a_lease_changes_nothing(
    redis: Redis, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """Its properties and its repr say that it is lost, by the clock, and tell nobody: neither the
    log, nor a callback, nor a signal. `check()` and the release do."""
    told: list[Lease] = []
    signalled: list[LockEvent] = []

    def receiver(event: LockEvent, **_: object) -> None:
        signalled.append(event)

    lock_lost.connect(receiver)
    try:
        lease = redis_lock("job", ttl=0.2, renew=False, on_lost=told.append).acquire()
        watchdog(server_of("default")).forget(lease._claim)  # or it would be told by the watchdog
        eventually(lambda: not lease.remaining())
        threads = threading.active_count()
        assert lease.state == LeaseState.LOST
        assert "lost" in repr(lease)
        assert "passed before it was renewed" in str(lease._lifetime.lost)
        its = lease._lifetime
        assert (its.over, its.closing, lease._holds.orphan, its.alive) == (
            False,
            False,
            None,
            False,
        )
        assert threading.active_count() <= threads
        background.settle()
        assert not told
        assert not signalled
        assert "is lost" not in caplog.text
        with pytest.raises(LeaseLost):
            lease.check() if ends == "checked" else lease.release()
        eventually(lambda: told == [lease])
        background.settle()
        assert [event.name for event in signalled] == ["job"]
        assert caplog.text.count("is lost") == 1
    finally:
        lock_lost.disconnect(receiver)
