"""Locks that are taken in two orders are reported, also when that has never done any harm."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_redislock import (
    LockOrderError,
    LockOrderWarning,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.lease import order
from django_redislock.settings import naming
from django_redislock.testing import check_lock_order
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests did says nothing here."""
    monkeypatch.setattr(order, "_of_this_process", order.Order())
    monkeypatch.setattr(naming, "patterns", ())


@pytest.fixture
def checked() -> Iterator[None]:
    with check_lock_order():
        yield


def take(*names: str) -> None:
    """One within the other."""
    if names:
        with redis_lock(names[0]):
            take(*names[1:])


def in_a_thread(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result(PATIENCE)


@pytest.mark.usefixtures("checked")
class TestOrder:
    def test_two_orders(self) -> None:
        """Both places are told, though the two have never met; and it is told before it waits."""
        with redis_lock("a", label="shop/pay.py:1"), redis_lock("b", label="shop/pay.py:2"):
            pass
        with (
            redis_lock("b", label="shop/ship.py:3"),
            pytest.raises(LockOrderError) as caught,
        ):
            redis_lock("a", label="shop/ship.py:4").acquire()
        message = str(caught.value)
        assert (
            "Here 'a' is wanted at shop/ship.py:4 while 'b' is held, taken at shop/ship.py:3"
            in (message)
        )
        assert "Elsewhere 'b' is wanted at shop/pay.py:2 while 'a' is held" in message
        assert "taken at shop/pay.py:1" in message
        assert redis_lock("a").holder() is None

    def test_it_is_told_each_time(self) -> None:
        take("a", "b")
        for _ in range(2):
            with pytest.raises(LockOrderError):
                take("b", "a")

    def test_one_order(self) -> None:
        """However often, and in parts."""
        for _ in range(2):
            take("a", "b", "c")
            take("a", "c")
            take("b", "c")
        take("a")

    def test_a_longer_cycle(self) -> None:
        take("a", "b")
        take("b", "c")
        take("x", "b")
        with pytest.raises(LockOrderError) as caught:
            take("c", "a")
        message = str(caught.value)
        assert message.index("'b' is wanted") < message.index("'c' is wanted")
        assert "'x'" not in message

    def test_one_name_on_two_servers(self, settings: Any) -> None:
        """Is two locks. Two databases will do."""
        default = settings.CACHES["default"]
        other = {**default, "LOCATION": default["LOCATION"].replace("db=0", "db=1")}
        settings.CACHES = {**settings.CACHES, "other": other}
        with redis_lock("a"), redis_lock("b", using="other"):
            pass
        with redis_lock("b"), redis_lock("a", using="other"):
            pass
        with redis_lock("a"), redis_lock("a", using="other"):
            pass
        with redis_lock("a", using="other"), pytest.raises(LockOrderError):
            redis_lock("a").acquire()

    def test_one_server_of_two_aliases(self, settings: Any) -> None:
        """Is one lock."""
        settings.CACHES = {**settings.CACHES, "twin": settings.CACHES["default"]}
        take("a", "b")
        with redis_lock("b", using="twin"), pytest.raises(LockOrderError):
            redis_lock("a").acquire()

    def test_not_only_the_innermost(self) -> None:
        """All that is held counts."""
        take("a", "b", "c")
        with pytest.raises(LockOrderError):
            take("c", "a")

    def test_by_several_threads(self) -> None:
        """What one has seen counts for all; what another one holds does not."""
        in_a_thread(lambda: take("a", "b"))
        with redis_lock("b"):
            in_a_thread(lambda: take("a"))
        with pytest.raises(LockOrderError):
            in_a_thread(lambda: take("b", "a"))

    def test_who_tries_once(self) -> None:
        """Can't be part of a deadlock; but what it gets is held."""
        take("a", "b")
        with redis_lock("b"):
            lease = redis_lock("a").acquire(wait=0)
            lease.release()
        lease = redis_lock("b").acquire(wait=0)
        with pytest.raises(LockOrderError):
            take("a")
        lease.release()

    def test_what_was_released(self) -> None:
        """Is not held, in whatever order."""
        take("a", "b")
        lease = redis_lock("b").acquire()
        lease.release()
        take("a")

    def test_taken_again(self) -> None:
        """By its own holder: that waits for nobody."""
        with redis_lock("a"), redis_lock("b"), redis_lock("a", reentrant=True):
            take("c")
        with pytest.raises(LockOrderError):
            take("c", "b")

    def test_shared_ones(self) -> None:
        """What several may hold is left out."""
        with Semaphore("s", 3):
            take("a")
        with redis_lock("a"), Semaphore("s", 3):
            pass
        with ReadWriteLock("r").read():
            take("a")
        with redis_lock("a"), ReadWriteLock("r").read():
            pass

    def test_other_kinds(self) -> None:
        with ReadWriteLock("r").write(), TimestampLock("lock.order"):
            pass
        with TimestampLock("lock.order"), pytest.raises(LockOrderError):
            ReadWriteLock("r").write().acquire()

    def test_several_at_once(self) -> None:
        """In one step there is no order; but there is one to what is held and wanted besides."""
        with MultiLock(["a", "b"]):
            take("c")
        with MultiLock(["b", "a"]):
            pass
        take("b", "a")
        with redis_lock("c"), pytest.raises(LockOrderError):
            MultiLock(["b", "d"]).acquire()


class TestMany:
    @pytest.mark.slow
    def test_a_long_chain(self) -> None:
        """Each new link at its beginning leads along all of it. And it is told whole."""
        orders = order.Order()
        give_up = time.monotonic() + PATIENCE
        length = 3000
        for number in reversed(range(length)):
            seen = order._Seen(str(number), "here", str(number + 1), "there")
            orders.note(seen, raises=True)
            assert time.monotonic() < give_up
        with pytest.raises(LockOrderError) as caught:
            orders.note(order._Seen(str(length), "x", "0", "y"), raises=True)
        assert str(caught.value).count("there") == length

    def test_the_shortest_way(self) -> None:
        """Is what people read."""
        orders = order.Order()
        for held, wanted in "ab", "bc", "cd", "ac", "ce", "ad":
            orders.note(order._Seen(held, "here", wanted, "there"), raises=True)
        with pytest.raises(LockOrderError) as caught:
            orders.note(order._Seen("e", "x", "a", "y"), raises=True)
        assert str(caught.value).count("there") == 2


@pytest.mark.usefixtures("checked")
class TestPatterns:
    def test_templates(self) -> None:
        """Whatever the arguments were."""

        @redis_lock("invoice:{pk}")
        def pay(pk: int, inner: Callable[[], Any] = lambda: None) -> None:
            inner()

        @redis_lock("stock:{pk}")
        def ship(pk: int, inner: Callable[[], Any] = lambda: None) -> None:
            inner()

        pay(1, lambda: ship(7))
        with pytest.raises(LockOrderError, match="'invoice:2' is wanted"):
            ship(8, lambda: pay(2))

    def test_entries_of_the_settings(self, settings: Any) -> None:
        settings.REDISLOCK = {"LOCKS": {"invoice:*": {"TTL": 20}, "stock:*": {"TTL": 20}}}
        take("invoice:1", "stock:7")
        with pytest.raises(LockOrderError):
            take("stock:8", "invoice:2")

    def test_two_of_one_pattern(self, settings: Any) -> None:
        """Sorted, they are right; in both orders they are not."""
        settings.REDISLOCK = {"LOCKS": {"account:*": {"TTL": 20}}}
        take("account:1", "account:2")
        take("account:2", "account:3")
        take("account:1", "account:3")
        with pytest.raises(LockOrderError):
            take("account:3", "account:1")

    def test_others(self) -> None:
        """Without a pattern, a name is a name."""
        take("invoice:1", "stock:7")
        take("stock:8", "invoice:2")


@pytest.mark.usefixtures("checked")
class TestTasks:
    async def nested(self, *names: str) -> None:
        if names:
            async with redis_lock(names[0]):
                await self.nested(*names[1:])

    def test_one_task(self) -> None:
        asyncio.run(self.nested("a", "b"))
        with pytest.raises(LockOrderError):
            asyncio.run(self.nested("b", "a"))

    async def test_another_task_is_another_holder(self) -> None:
        """Also one that was begun under the lock."""
        await self.nested("a", "b")
        async with redis_lock("b"):
            await asyncio.create_task(self.nested("a"))

    def test_a_thread_that_its_task_waits_for(self) -> None:
        async def main() -> None:
            async with redis_lock("b"):
                await sync_to_async(take)("a")

        take("a", "b")
        with pytest.raises(LockOrderError):
            asyncio.run(main())

    def test_a_task_that_its_thread_waits_for(self) -> None:
        take("a", "b")
        with redis_lock("b"), pytest.raises(LockOrderError):
            async_to_sync(self.nested)("a")


class TestSettings:
    def test_off(self) -> None:
        """By default nothing is noted."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            take("a", "b")
            take("b", "a")
        assert order._of_this_process._after == {}

    def test_warn(self, settings: Any) -> None:
        """Once for each pair; the lock is taken all the same."""
        settings.REDISLOCK = {"LOCK_ORDER": "warn"}
        take("a", "b")
        with pytest.warns(LockOrderWarning, match="'a' is wanted at tests/test_lock_order.py"):
            take("b", "a")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            take("b", "a")
            take("a", "b")

    def test_raise(self, settings: Any) -> None:
        settings.REDISLOCK = {"LOCK_ORDER": "raise"}
        take("a", "b")
        with pytest.raises(LockOrderError):
            take("b", "a")

    def test_not_for_this_one(self, settings: Any) -> None:
        """An entry of `LOCKS` may say otherwise."""
        settings.REDISLOCK = {"LOCK_ORDER": "raise", "LOCKS": {"a": {"LOCK_ORDER": "off"}}}
        take("a", "b")
        take("b", "a")

    def test_what_was_before_does_not_count(self) -> None:
        """Each check begins anew; the outer one goes on after it."""
        with check_lock_order():
            take("a", "b")
            with check_lock_order():
                take("b", "a")
            with pytest.raises(LockOrderError):
                take("b", "a")
        assert order.testing is None

    def test_the_memory_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Neither what is wanted nor what is held is noted beyond it, and it is said once."""
        monkeypatch.setattr(order, "MAX_EDGES", 3)
        with check_lock_order():
            with redis_lock("a"):
                for number in range(5):
                    take(f"job:{number}")
            for number in range(5):
                take(f"other:{number}", "b")
            assert order.testing is not None
            (wanted,) = order.testing._after.values()
            assert len(wanted) == 3
        said = [record for record in caplog.records if "orders of locks" in record.message]
        assert len(said) == 1
