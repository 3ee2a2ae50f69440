"""The examples of docs/shared.md do what that page says."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from django_redislock import ReadWriteLock, Semaphore, redis_lock
from tests.blocks import blocks
from tests.blocks import example as run

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "shared.md").read_text(encoding="utf-8")
BLOCKS = blocks("shared.md")


def test_semaphore(redis: Redis) -> None:
    """Three at a time; a function that is skipped when two are at it."""
    plain, _, coroutine = BLOCKS[0].partition("async with")
    places: list[int] = []
    example = run(
        plain.replace("(supplier_id): ...", "(supplier_id): return supplier_id"),
        export=lambda: places.append(redis.zcard("redislock:{exports}")),
    )
    assert places == [1]
    fetch = example["fetch_prices"]
    assert fetch(7) == 7
    with Semaphore("supplier:7", 2), Semaphore("supplier:7", 2):
        assert len(Semaphore("supplier:7", 2).holders()) == 2

        async def elsewhere() -> Any:
            return await asyncio.to_thread(fetch, 7)

        assert asyncio.run(elsewhere()) is None
    body = "async def main():\n" + textwrap.indent(f"async with{coroutine}", "    ")
    leases: list[Any] = []

    async def export(lease: Any) -> None:
        leases.append(lease)

    asyncio.run(run(body, Semaphore=Semaphore, export=export)["main"]())
    assert leases[0].name == "exports"


def test_read_write_lock(redis: Redis) -> None:
    """Who renders reads, who rebuilds writes, and then reads."""
    seen: list[str] = []

    def look(*_: Any) -> None:
        (record,) = redis.hvals("redislock:{catalogue}:holders")
        seen.append(record.rpartition(b"\t")[2].partition(b"|")[0].decode())

    example = run(BLOCKS[1], render=look, products=[], rebuild=look, check_prices=look)
    assert seen == ["read", "write", "read"]
    example["import_catalogue"]()
    assert not redis.exists("redislock:{catalogue}")


def test_settings() -> None:
    """The example is valid, and does what it says."""
    with override_settings(REDISLOCK=run(BLOCKS[2])["REDISLOCK"]):
        assert Semaphore("exports")._policy().limit == 3
        with redis_lock("catalogue:page"), ReadWriteLock("catalogue").read():
            assert redis_lock("catalogue:page")._policy().kind == "read"


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(tests/[\w/.:]+)`", PAGE))))
def test_promises_have_tests(test: str) -> None:
    """Each that is named is there."""
    path, *names = test.split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"(def|class) {name}\b", text), name
