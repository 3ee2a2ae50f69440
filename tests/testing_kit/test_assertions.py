"""What a test says of locks, and does to them, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_redislock import Lease, LeaseLost, MultiLock, redis_lock
from django_redislock.signals import lock_lost
from django_redislock.testing import (
    assert_held,
    assert_locked,
    assert_noted,
    locks_always_free,
    locks_in_memory,
    lose_lease,
)
from tests.contract.api import Api

pytest.importorskip("fakeredis")


@pytest.fixture(params=["real", "free", "memory"], autouse=True)
def _world(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a real server, on none, and in memory."""
    if request.param == "real":
        yield
        return
    with locks_always_free() if request.param == "free" else locks_in_memory():
        yield


class TestNoted:
    def test_it_was(self) -> None:
        """By name or by pattern; the notes are returned, also those that an end removes."""
        with assert_noted("export:7") as notes, assert_noted("export:*"):
            with redis_lock("export:7") as lease:
                lease.note(cursor=1)
                lease.checkpoint(cursor=2)
        assert notes == [{"cursor": 1}, {"cursor": 2}]

    def test_it_was_not(self) -> None:
        with pytest.raises(
            AssertionError, match=r"nothing was noted of 'job'; noted was: 'other'"
        ):
            with assert_noted("job"), redis_lock("other") as lease:
                lease.note(cursor=1)

    def test_bad_input(self) -> None:
        with pytest.raises(TypeError, match="name must be a str"):
            assert_noted(7)  # type: ignore[arg-type]


class TestLocked:
    def test_it_was(self, api: Api) -> None:
        """By name or by pattern; the events are returned."""
        with assert_locked("invoice:42") as events, assert_locked("invoice:*"):
            api.enter(redis_lock("invoice:42"), lambda _: None)
            api.start(lambda: api.enter(redis_lock("order:7"), lambda _: None)).result()
        assert [(event.outcome, event.name) for event in events] == [
            ("acquired", "invoice:42"),
            ("released", "invoice:42"),
            ("acquired", "order:7"),
            ("released", "order:7"),
        ]

    def test_one_of_several(self, api: Api) -> None:
        """A `MultiLock` locks each of its names."""
        with assert_locked("account:2"):
            api.enter(MultiLock(["account:1", "account:2"]), lambda _: None)

    def test_it_was_not(self, api: Api) -> None:
        """The error says what was locked instead."""
        with pytest.raises(AssertionError, match=r"'invoice:42' was .* locked here: 'invoice:4'"):
            with assert_locked("invoice:42"):
                api.enter(redis_lock("invoice:4"), lambda _: None)

    def test_what_went_wrong_comes_first(self) -> None:
        """The block's own exception is not replaced."""
        with pytest.raises(ZeroDivisionError), assert_locked("invoice:42"):
            _ = 1 / 0

    def test_wrong_arguments(self) -> None:
        """The error is raised where the arguments are written."""
        with pytest.raises(TypeError, match="name must be a str"):
            assert_locked(redis_lock("invoice:42"))  # type: ignore[arg-type]


class TestHeld:
    def test_here(self, api: Api) -> None:
        """A lock is held here by this thread or task, until it is released."""

        async def work() -> None:
            async with redis_lock("invoice:42"):
                assert_held("invoice:42")
                await sync_to_async(assert_held)("invoice:*")
            with pytest.raises(AssertionError, match="held here: nothing"):
                assert_held("invoice:42")

        asyncio.run(work())
        with redis_lock("invoice:42") as lease, redis_lock("order:7"):
            assert_held("invoice:42")
            lease.release()
            with pytest.raises(AssertionError, match=r"is not held here; held here: 'order:7'"):
                assert_held("invoice:42")

    def test_elsewhere(self, api: Api) -> None:
        """A lock of another thread is not held here."""
        api.start(lambda: api.acquire(redis_lock("invoice:42"))).result()
        with pytest.raises(AssertionError):
            assert_held("invoice:42")


class TestLose:
    def test_it_is_lost(self, api: Api) -> None:
        """By name or by lease: `check()` raises, callbacks have run, and others may have the
        lock."""
        lost: list[Lease] = []

        def body(lease: Lease) -> None:
            lease.on_lost(lost.append)
            lose_lease(lease if lost else "invoice:42")
            assert lost[-1:] == [lease]
            with pytest.raises(LeaseLost, match="lose_lease"):
                lease.check()
            other = api.start(lambda: api.acquire(redis_lock("invoice:42"), wait=0)).result()
            api.release(other)

        for _ in range(2):
            with pytest.raises(LeaseLost):
                api.enter(redis_lock("invoice:42"), body)
        assert len(lost) == 2

    def test_receivers(self) -> None:
        """Receivers of signals have been called."""
        why = []

        def receiver(event: Any, **kwargs: Any) -> None:
            why.append(event.why)

        lock_lost.connect(receiver)
        try:
            lease = redis_lock("invoice:42").acquire()
            assert lease is not None
            lose_lease(lease)
        finally:
            lock_lost.disconnect(receiver)
        assert why == ["the test has called lose_lease()"]

    async def test_a_task_is_cancelled(self) -> None:
        """The task is cancelled at its next await, with the reason."""
        with pytest.raises(LeaseLost, match="lose_lease"):
            async with redis_lock("invoice:42", cancel_on_lost=True):
                lose_lease("invoice:*")
                await asyncio.Event().wait()

    def test_nothing_to_lose(self) -> None:
        """A lock that nobody holds, or that was lost or released, can't be lost."""
        lease = redis_lock("invoice:42").acquire()
        assert lease is not None
        with pytest.raises(LookupError, match=r"'order:7' is not held .* held by it: 'invoice"):
            lose_lease("order:7")
        lose_lease(lease)
        with pytest.raises(LeaseLost):
            lose_lease(lease)
        with pytest.raises(LookupError):
            lose_lease("invoice:42")
