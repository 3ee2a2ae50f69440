"""A lock that is taken away from its holder by code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    LeaseRevoked,
    LockReentered,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.primitives import mutex
from django_redislock.signals import lock_cleared
from django_redislock.testing import locks_always_busy, locks_always_free
from tests.contract.api import Api, queued
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually

WHY = "a newer import"


def stolen(api: Api, **options: Any) -> Any:
    return api.acquire(redis_lock("job", **options), steal=True, reason=WHY)


@pytest.fixture
def held() -> Any:
    """A lease of another thread."""
    with ThreadPoolExecutor(1) as other:
        yield other.submit(redis_lock("job", ttl=3).acquire).result()


def test_from_a_holder(api: Api, held: Any, redis: Redis) -> None:
    """The holder learns by whom, and why, as soon as of any loss."""
    told: list[Any] = []
    held.on_lost(told.append)
    lease = stolen(api)
    assert lease.fencing_token > held.fencing_token
    assert redis.get("redislock:{job}").startswith(lease.token.encode())
    eventually(lambda: told)
    with pytest.raises(LeaseRevoked) as raised:
        held.check()
    assert (raised.value.by, raised.value.reason) == (lease.owner, WHY)
    api.release(lease)
    assert not redis.exists("redislock:{job}")


def test_from_another_process(start: Start, redis: Redis) -> None:
    worker = start("hold", "60")
    worker.holds()
    with redis_lock("job").acquire(steal=True, reason=WHY) as lease:
        worker.go_on()
        assert worker.says() == "lost"
        lease.check()


def test_that_is_free(api: Api) -> None:
    lease = stolen(api)
    assert lease.remaining() > 20
    api.release(lease)


def test_waiters_keep_their_order(start: Callable[..., Worker], redis: Redis) -> None:
    """The thief goes before them, and then they follow in the order of arrival."""
    holder = redis_lock("job").acquire()
    waiters = []
    for number in (1, 2):
        waiters.append(start("wait"))
        queued(redis, "job", number)
    with ThreadPoolExecutor(1) as other:
        thief = other.submit(redis_lock("job").acquire, steal=True, reason=WHY).result()
        assert redis.zcard("redislock:{job}:queue") == 2
        other.submit(thief.release).result()
    first = waiters[0].holds()
    assert first > thief.fencing_token > holder.fencing_token
    waiters[0].go_on()
    assert waiters[1].holds() > first


def test_the_note_is_inherited(held: Any) -> None:
    held.checkpoint(cursor=41)
    with redis_lock("job").acquire(steal=True, reason=WHY) as lease:
        assert lease.inherited == {"cursor": 41}


def test_an_answer_that_is_lost(held: Any, monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    """The request was carried out, and its answer did not come: nothing stays locked."""

    async def steal(*args: Any) -> Any:
        await honest(*args)
        raise LockUnavailable("lost", doubtful=True)

    honest = mutex.steal
    monkeypatch.setattr(mutex, "steal", steal)
    with pytest.raises(LockUnavailable):
        redis_lock("job").acquire(steal=True, reason=WHY)
    eventually(lambda: not redis.exists("redislock:{job}"))


def test_two_thieves(held: Any, redis: Redis) -> None:
    """Who is robbed before it has seen the answer is told so; one has it in the end."""
    begin = threading.Barrier(4)

    def steal() -> Any:
        begin.wait(PATIENCE)
        with suppress(LeaseRevoked):
            return redis_lock("job").acquire(steal=True, reason=WHY)

    with ThreadPoolExecutor(4) as pool:
        got = [one.result(PATIENCE) for one in [pool.submit(steal) for _ in range(4)]]
    holder = redis.get("redislock:{job}")
    assert sum(holder.startswith(one.token.encode()) for one in got if one) == 1


def test_it_is_told(held: Any) -> None:
    """As a clearing, by whoever stole it."""
    events: list[Any] = []

    def receiver(event: Any, **_: Any) -> None:
        events.append(event)

    lock_cleared.connect(receiver)
    try:
        with redis_lock("job").acquire(steal=True, reason=WHY) as lease:
            [event] = events
            assert (event.owner, event.by, event.why) == (held.owner, lease.owner, WHY)
    finally:
        lock_cleared.disconnect(receiver)


def test_from_oneself() -> None:
    with redis_lock("job"), pytest.raises(LockReentered):
        redis_lock("job").acquire(steal=True, reason=WHY)


def test_in_tests() -> None:
    """On no server there is nobody to steal from."""
    with locks_always_free():
        assert redis_lock("job").acquire(steal=True, reason=WHY) is not None
    with locks_always_busy():
        assert redis_lock("job").acquire(steal=True, reason=WHY) is None


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"steal": True}, "the holder sees the reason"),
            ({"reason": WHY}, "the holder sees the reason"),
            ({"steal": True, "reason": ""}, "the holder sees the reason"),
            ({"steal": 1, "reason": WHY}, "steal must be True or False"),
            ({"steal": True, "reason": 7}, "reason must be a str"),
            ({"steal": True, "reason": WHY, "wait": 5}, "leave wait= out"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], said: str) -> None:
        with pytest.raises(TypeError, match=said):
            redis_lock("job").acquire(**arguments)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Semaphore("job", 2),
            lambda: ReadWriteLock("job").read(),
            lambda: ReadWriteLock("job").write(),
            lambda: TimestampLock("job"),
            lambda: MultiLock(["a", "b"]),
            lambda: redis_lock("job", timestamp_key="lock.job"),
        ],
        ids=["semaphore", "read", "write", "timestamp", "multi", "together"],
    )
    def test_other_kinds(self, make: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match="only a mutex of one name can"):
            make().acquire(steal=True, reason=WHY)
