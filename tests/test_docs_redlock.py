"""The examples of docs/redlock.md do what that page says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Any

import pytest
from redis import Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock import LeaseLost, Redlock, redis_lock
from django_redislock.base.servers import Servers
from django_redislock.primitives import redlock
from tests.blocks import blocks, example
from tests.faults.caches import caches

BLOCKS = blocks("redlock.md")


@pytest.fixture
def servers(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, RedisServer]]:
    """Five of them, by the names that the page gives them."""
    found = find_server()
    if found.url is not None:
        pytest.skip("needs servers of its own")
    monkeypatch.setattr(redlock, "WITHIN", 5.0)  # a busy machine is no fault here
    with ExitStack() as stack:
        servers = {
            f"redis-{letter}": stack.enter_context(RedisServer(found)) for letter in "abcde"
        }
        entries = {name: caches(one.url)["default"] for name, one in servers.items()}
        settings.CACHES = settings.CACHES | entries
        yield servers


def held(servers: dict[str, RedisServer], name: str) -> list[str]:
    """Where it is locked now."""

    def has(server: RedisServer) -> bool:
        with Redis.from_url(server.url) as redis:
            return bool(redis.exists(f"redislock:{{{name}}}"))

    return [alias for alias, server in servers.items() if server.running and has(server)]


run = partial(example, Redlock=Redlock)


def test_the_first_example(servers: dict[str, RedisServer]) -> None:
    """It is held on a majority while it runs."""
    seen: list[list[str]] = []
    run(BLOCKS[0], export=lambda: seen.append(held(servers, "nightly-export")))
    assert len(seen[0]) >= 2


def test_settings(servers: dict[str, RedisServer], settings: Any) -> None:
    """The entry makes it a Redlock, by either name."""
    example = run(BLOCKS[1])
    assert example["CACHES"].keys() == {"default", "redis-a", "redis-b", "redis-c"}
    settings.REDISLOCK = example["REDISLOCK"]
    for lock in Redlock("nightly-export"), redis_lock("nightly-export"):
        with lock as lease:
            assert isinstance(lease.using, Servers)
            assert len(held(servers, "nightly-export")) >= 2


def test_a_server_that_restarts(servers: dict[str, RedisServer]) -> None:
    """Both are held, as the page warns, until the first one's next renewal."""
    for name in "redis-d", "redis-e":
        servers[name].stop()

    def restart_without_data(*names: str) -> None:
        for name in names:
            servers[name].stop()
            servers[name].start()

    first, restart, second = BLOCKS[2].splitlines()
    names = {"five": list(servers), "restart_without_data": restart_without_data}
    example = run(first, **names)
    run(restart, **names)

    def elsewhere() -> None:
        example.update(run(second, **names))

    other = Thread(target=elsewhere)  # or it would be held again by ourselves
    other.start()
    other.join()
    for lease in example["first"], example["second"]:
        lease.check()
    with pytest.raises(LeaseLost, match="holds the lock now"):
        example["first"].extend()  # as its next renewal does
    example["second"].release()
