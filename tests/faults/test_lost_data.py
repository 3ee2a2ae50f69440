"""Redis forgets: its scripts, one key of ours, all keys; by a flush or by eviction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, LeaseState, redis_lock
from django_redislock.transport import ports
from django_redislock.transport.protocol import Command
from django_redislock.transport.server import server_of
from tests.calling import watch
from tests.contract.api import Api
from tests.faults.waiters import HISTORY, LOCK, NAME, QUEUE, Line, renew_now
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def harmed(own_server: RedisServer) -> Iterator[Redis]:
    """A server of the test's own; the locks go there, too."""
    with Redis.from_url(own_server.url) as redis:
        yield redis


@pytest.fixture
def flushed(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server forgets all scripts before every call of one. What was called then."""
    called: list[str] = []
    script, pack = ports.BasePort.script, ports.packed_script

    async def flushing(*args: Any) -> Any:
        redis.script_flush()
        return await script(*args)

    def noted(
        body: str, keys: Sequence[str], args: Sequence[Any], how: str = "EVALSHA"
    ) -> Command:
        called.append(how)
        return pack(body, keys, args, how)

    watch(monkeypatch, flushing)
    monkeypatch.setattr(ports, "packed_script", noted)
    return called


def test_scripts_forgotten(api: Api, redis: Redis, flushed: list[str]) -> None:
    """Nobody notices when the server forgets the scripts before every single call."""
    lease = api.acquire(redis_lock(NAME))
    line = Line(api, redis, 3)
    api.extend(lease)
    ends = redis.pexpiretime(f"redislock:{{{NAME}}}")
    renew_now(lease)
    eventually(lambda: redis.pexpiretime(f"redislock:{{{NAME}}}") > ends)
    assert api.holder(redis_lock(NAME)).fencing_token == lease.fencing_token
    api.release(lease)
    line.all_enter(after=lease)
    assert line.order == [0, 1, 2]
    cleared = api.acquire(redis_lock(NAME))
    assert api.clear(redis_lock(NAME), reason="test") is not None
    with pytest.raises(LeaseLost):
        api.release(cleared)
    # Not all: between the flush and the call somebody else may have sent the script.
    assert flushed.count("EVAL") > 10


def test_all_keys_flushed(api: Api, harmed: Redis) -> None:
    """The holder is told at its next renewal. The first waiter who looks has the lock, the others
    keep their order; and the fencing token goes on, although its last value is lost."""
    lease = api.acquire(redis_lock(NAME))
    line = Line(api, harmed, 5)
    harmed.flushdb()
    renew_now(lease)
    eventually(lambda: lease.state == LeaseState.LOST)
    first = line.one_enters()
    with pytest.raises(LeaseLost):
        api.release(lease)
    line.all_enter(after=lease)
    assert line.order == [first, *(number for number in range(5) if number != first)]


@pytest.mark.parametrize("key", [QUEUE, f"{LOCK}:waiters", HISTORY, "redislock:index"])
def test_one_key_lost(api: Api, harmed: Redis, key: str) -> None:
    """Besides that of the lock itself, none matters to the holder, nor to the order of those
    who have looked again since."""
    lease = api.acquire(redis_lock(NAME))
    line = Line(api, harmed, 5)
    eventually(lambda: harmed.delete(key))  # the history is written when a hold is a second old
    eventually(lambda: harmed.zcard(QUEUE) == harmed.hlen(f"{LOCK}:waiters") == 5)
    api.extend(lease)
    api.release(lease)
    line.all_enter(after=lease)
    assert line.order == [0, 1, 2, 3, 4]


def test_evicted(api: Api, harmed: Redis) -> None:
    """In a full cache that evicts, the lock goes like any key."""
    lease = api.acquire(redis_lock(NAME))
    line = Line(api, harmed, 3)
    # By chance, since looking at the lock counts as using it.
    harmed.config_set("maxmemory-policy", "allkeys-random")
    harmed.config_set("maxmemory", harmed.info("memory")["used_memory"] + 1_000_000)
    pages = 0
    while (harmed.get(LOCK) or b"").startswith(lease.token.encode()):
        assert pages < 100_000
        # One by one, so that no more than needed is evicted, least of all the next one's lock.
        harmed.set(f"page {pages}", bytes(10_000))
        pages += 1
    harmed.config_set("maxmemory", 0)
    renew_now(lease)
    eventually(lambda: lease.state == LeaseState.LOST)
    line.all_enter(after=lease)
    assert sorted(line.order) == [0, 1, 2]


def test_flushed_after_a_grant_that_came_twice(
    api: Api, harmed: Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter reads its grant from the server while its process passes on the same grant. When
    the data is lost and it has to wait again, it does not believe the copy."""
    old = "lock.invoice"
    settings.REDISLOCK = {}
    first = api.acquire(redis_lock(NAME))
    harmed.set(old, int(time.time()) + 600)
    asked: list[str] = []
    answered: list[str] = []
    real = ports.BasePort.script

    async def script(self: Any, name: str, keys: Any, args: Any) -> Any:
        if name != "mutex_acquire" or not args[2].endswith("|waits"):
            return await real(self, name, keys, args)
        asked.append(name)
        if len(asked) == 3:  # the waiter listens by now, and is handed the lock before it asks
            await first._end_hold(ports.SyncPort(server_of("default")), first._holds.innermost)
        answer = await real(self, name, keys, args)
        answered.append(name)
        return answer

    monkeypatch.setattr(ports.BasePort, "script", script)
    waits = redis_lock(NAME, ttl=6, wait=PATIENCE, label="waits", timestamp_key=old)
    waiter = api.start(lambda: api.acquire(waits))
    eventually(lambda: len(answered) == 3)
    with harmed.pipeline(transaction=True) as pipeline:
        pipeline.flushdb().set(old, int(time.time()) + 600).execute()
    second = api.acquire(redis_lock(NAME), wait=0)
    eventually(lambda: len(asked) == 4)
    harmed.delete(old)
    eventually(lambda: len(asked) > 5 or waiter.done())
    assert not waiter.done(), "two hold it"
    api.release(second)
    third = waiter.result(PATIENCE)
    assert third.fencing_token > second.fencing_token
    api.release(third)
