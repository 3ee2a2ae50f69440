"""The examples of docs/once.md do what that page says."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from redis import Redis

from django_redislock import once, redis_lock
from django_redislock.settings import conf
from tests.blocks import blocks, example
from tests.waiting import PATIENCE

BLOCKS = blocks("once.md")
run = partial(example, once=once)


class Calls(list[str]):
    """Makes functions that write down that they were called."""

    def __getitem__(self, word: Any) -> Callable[..., Any]:
        return lambda *_: self.append(word)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_once(calls: Calls) -> None:
    """The second one has nothing to do."""
    text = BLOCKS[0].replace("(shop_id): ...", "(shop_id): return done('import')")
    text = text.replace("seed(): ...", "seed(): return done('seed')")
    for _ in range(2):
        example = run(text, warm_cache=calls["warm"], done=lambda word: calls.append(word) or word)
        example["import_shop"](3)
        asyncio.run(example["seed"]())
    assert calls == ["warm", "import", "seed"]
    assert example["import_shop"](3) is None
    assert example["import_shop"](4) == "import"


def test_waiting(calls: Calls) -> None:
    """Whoever comes later serves what the first has migrated."""
    begun, end = threading.Event(), threading.Event()

    def migrate() -> None:
        begun.set()
        assert end.wait(PATIENCE)
        calls.append("migrate")

    def start() -> None:
        run(BLOCKS[1], migrate_files=migrate, serve_files=calls["serve"])

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(start)
        assert begun.wait(PATIENCE)
        second = threads.submit(start)
        end.set()
        first.result(PATIENCE)
        second.result(PATIENCE)
    assert calls == ["migrate", "serve", "serve"]


def test_forget(redis: Redis) -> None:
    """Done, forgotten, and its lock is named as the page says."""
    with once("warm-cache"):
        assert redis_lock("once:warm-cache").holder() is not None
    once("warm-cache").forget()
    with once("warm-cache") as first:
        assert first


def test_messages(calls: Calls) -> None:
    """Refused while another is at it, acknowledged when it is done."""

    class Channel:
        ack, nack = calls["ack"], calls["nack"]

    example = run(BLOCKS[2], ship=calls["ship"])

    def elsewhere() -> None:
        with redis_lock("deduplicate:order:7"):
            inside.set()
            leave.wait(PATIENCE)

    inside, leave = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        busy = thread.submit(elsewhere)
        inside.wait(PATIENCE)
        example["on_message"]({"id": 7}, Channel)
        leave.set()
        busy.result(PATIENCE)
    for _ in range(2):
        example["on_message"]({"id": 7}, Channel)
    assert calls == ["nack", "ship", "ack", "ack"]


def test_a_first_value() -> None:
    """Whoever comes second has it, too."""
    assert run(BLOCKS[3], secrets=secrets)["salt"] == run(BLOCKS[3], secrets=secrets)["salt"]


def test_one_computation(calls: Calls) -> None:
    """Kept for a while, and not kept."""

    def fetch(currency: str) -> tuple[str, int]:
        calls.append(currency)
        return currency, 2

    async def build() -> str:
        calls.append("report")
        return "report"

    example = run(BLOCKS[4], fetch_rates=fetch, build_report=build)
    assert [example["rates"](c) for c in ("EUR", "USD", "EUR")] == [
        ["EUR", 2],
        ["USD", 2],
        ["EUR", 2],
    ]
    assert [asyncio.run(example["report"]()) for _ in range(2)] == ["report", "report"]
    assert calls == ["EUR", "USD", "report", "report"]


def test_settings(settings: Any) -> None:
    """They are settings that are read."""
    settings.REDISLOCK = run(BLOCKS[5])["REDISLOCK"]
    assert conf.policy("once:warm-cache", {}).ttl == 10
    assert conf.policy("single_flight:rates:EUR", {}).wait == 5
