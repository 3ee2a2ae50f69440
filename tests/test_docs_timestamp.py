"""The examples of docs/timestamp-lock.md and docs/lock-order.md do what these pages say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from django_redislock import LockOrderError, LockOrderWarning, redis_lock
from django_redislock.lease import lock_order
from django_redislock.testing import check_lock_order
from tests.blocks import DOCS, blocks, example
from tests.classic import Classic

STAMPS, ORDER = blocks("timestamp-lock.md"), blocks("lock-order.md")
run = partial(example, redis_lock=redis_lock)


@pytest.fixture(autouse=True)
def _clean(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lock_order, "_of_this_process", lock_order.Order())
    keys = "lock.import", "lock.shop:1"
    redis.delete(*keys)
    yield
    redis.delete(*keys)


def test_a_timestamp_lock(redis: Redis) -> None:
    """An old client is kept out."""
    seen = []
    run(STAMPS[0], run_import=lambda: seen.append(Classic(redis, "lock.import").acquire()))
    assert seen == [False]
    assert Classic(redis, "lock.import").acquire()


class TestMigration:
    """From the first day to the last."""

    def test_by_settings(self, redis: Redis, settings: Any) -> None:
        old = Classic(redis, "lock.import", timeout=60)
        assert old.acquire()
        with redis_lock("import"):
            pass  # before it: nothing keeps them apart
        settings.REDISLOCK = run(STAMPS[1])["REDISLOCK"]
        assert redis_lock("import").acquire(wait=0) is None
        old.release()
        with redis_lock("import") as lease, redis_lock("shop:1"):
            assert lease.fencing_token > 0
            assert not old.acquire()
            assert not Classic(redis, "lock.shop:1").acquire()
            settings.REDISLOCK = {}  # the last day: who has it releases both
        assert not redis.exists("lock.import", "lock.shop:1")
        with redis_lock("import"):
            assert not redis.exists("lock.import")

    def test_in_the_code(self, redis: Redis) -> None:
        seen = []
        text = STAMPS[2].replace("...", "work()")
        example = run(text, work=lambda: seen.append(Classic(redis, "lock.import").acquire()))
        example["run_import"]()
        assert seen == [False]
        assert not redis.exists("lock.import")


class TestLockOrder:
    def nested(self, outer: str, inner: str) -> None:
        with redis_lock(outer), redis_lock(inner):
            pass

    def test_in_a_test(self) -> None:
        example = run(
            ORDER[0],
            place_order=lambda: self.nested("stock", "payments"),
            refund=lambda: self.nested("payments", "stock"),
        )
        with pytest.raises(LockOrderError) as caught:
            example["test_orders_and_refunds"]()
        page = " ".join((DOCS / "lock-order.md").read_text(encoding="utf-8").split())
        told = re.sub(r" at \S+:\d+ in [\w.]*\w", "", str(caught.value))
        quoted = re.search(r"> Locks are taken.*? …", page)
        assert quoted is not None
        text = re.sub(r" at \S+:\d+ in \w+", "", quoted[0].replace("> ", "")).rstrip(" …")
        assert told.startswith(text)

    def test_in_all_tests(self) -> None:
        """The fixture that the page shows."""
        example = run(ORDER[1], pytest=pytest, check_lock_order=check_lock_order)
        assert callable(example["_lock_order"])

    def test_by_setting(self, settings: Any) -> None:
        settings.REDISLOCK = run(ORDER[2])["REDISLOCK"]
        self.nested("stock", "payments")
        with pytest.warns(LockOrderWarning):
            self.nested("payments", "stock")

    def test_left_out(self, settings: Any) -> None:
        settings.REDISLOCK = run(ORDER[3])["REDISLOCK"]
        self.nested("stock", "payments")
        self.nested("payments", "stock")
