"""The examples of docs/multi-lock.md do what that page says."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_redislock import MultiLock, redis_lock
from django_redislock.fencing import Fence
from tests.blocks import blocks, example

BLOCKS = blocks("multi-lock.md")
run = partial(example, MultiLock=MultiLock, redis_lock=redis_lock)


def held(redis: Redis) -> list[str]:
    """The names that are locked now."""
    keys = redis.keys("redislock:{*}")
    return sorted(key.decode().partition("{")[2].rstrip("}") for key in keys)


def test_the_first_example(redis: Redis) -> None:
    """Both are locked while it runs, and none afterwards."""
    seen: list[list[str]] = []
    one, two = SimpleNamespace(pk=1), SimpleNamespace(pk=2)
    for source, target in ((one, two), (two, one), (one, one)):
        names = {"source": source, "target": target, "amount": 3}
        run(BLOCKS[0], transfer=lambda *_: seen.append(held(redis)), **names)
    both = ["account:1", "account:2"]
    assert seen == [both, both, both[:1]]
    assert held(redis) == []


def test_decorators(redis: Redis) -> None:
    """Templates, and a function of the arguments."""
    seen: list[list[str]] = []
    text = BLOCKS[1].replace("amount): ...", "amount): look()")
    text = text.replace("(order): ...", "(order): look()")
    example = run(text, look=lambda: seen.append(held(redis)))
    example["transfer"](SimpleNamespace(pk=1), SimpleNamespace(pk=2), 3)
    lines = [SimpleNamespace(product_id=number) for number in (7, 5)]
    asyncio.run(example["reserve"](SimpleNamespace(lines=lines)))
    assert seen == [["account:1", "account:2"], ["product:5", "product:7"]]


def test_ordinary_locks() -> None:
    """Each name has a holder of its own."""
    text = BLOCKS[2].replace("    redis_lock", "    holder = redis_lock")
    assert run(text)["holder"] is not None
    assert redis_lock("account:1").holder() is None


def test_fencing() -> None:
    """A row is shown the token of its own name."""
    shown: list[tuple[int, int]] = []

    class Rows:
        def fenced(self, token: int) -> Any:
            fence = Fence.of(token)
            return SimpleNamespace(get=lambda pk: shown.append((pk, fence.token)))

    example = run(BLOCKS[3], Account=SimpleNamespace(objects=Rows()))
    tokens = example["lease"].fencing_tokens
    assert shown == [(1, tokens["account:1"]), (2, tokens["account:2"])]


@pytest.mark.parametrize("pattern", ["account:*", "account:1, account:2"])
def test_settings(settings: Any, pattern: str) -> None:
    """An entry of LOCKS holds for the text of all names."""
    settings.REDISLOCK = {"LOCKS": {pattern: {"TTL": 77}}}
    lease = MultiLock(["account:2", "account:1"]).acquire()
    assert lease is not None
    assert lease.ttl == 77
    lease.release()
