"""The connection on which a process listens, while at most one of its threads or tasks waits."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redislock import redis_lock
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.subscription import Subscription
from tests.contract.api import Api, queued
from tests.waiting import PATIENCE, eventually


def wait_once(api: Api, redis: Redis) -> None:
    """From then on this process listens."""
    held = api.acquire(redis_lock("job"))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=None))
    queued(redis, "job", 1)
    eventually(lambda: redis.pubsub_channels("redislock:inbox:*"))
    api.release(held)
    api.release(waiter.result(PATIENCE))


def test_nobody_reads(
    api: Api,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection stays, and the answers to its PINGs are read."""
    proofs: list[Subscription] = []
    prove = Subscription.prove

    def spy(its: Subscription) -> None:
        proofs.append(its)
        prove(its)

    monkeypatch.setattr(Subscription, "PING_EVERY", 0.1)
    monkeypatch.setattr(Subscription, "prove", spy)
    wait_once(api, redis)
    eventually(lambda: bool(proofs))
    last = proofs[-1]
    eventually(lambda: proofs.count(last) > 10)
    assert "Lost the connection" not in caplog.text


def test_it_is_lost(
    api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one is made at once, and not only when somebody waits the next time."""

    def listeners() -> set[str]:
        return {one["id"] for one in redis.client_list(_type="pubsub")}

    monkeypatch.setattr(Subscription, "PING_EVERY", 2 * PATIENCE)
    wait_once(api, redis)
    before = listeners()
    assert before
    redis.client_kill_filter(_type="pubsub")
    eventually(lambda: bool(listeners() - before))
    assert "Lost the connection" in caplog.text


def test_one_waits(api: Api, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps, and so does the thread that hears of changes of the leases of this process. They
    do not wake each other."""
    turns: list[Inbox] = []
    attend = Inbox._attend

    def spy(inbox: Inbox, its: Subscription) -> None:
        turns.append(inbox)
        attend(inbox, its)

    held = api.acquire(redis_lock("job"))
    eventually(lambda: any("t" in one["flags"] for one in redis.client_list()))
    monkeypatch.setattr(Inbox, "_attend", spy)
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=1))
    assert waiter.result(PATIENCE) is None
    assert len(turns) < 100
    api.release(held)
