"""The examples of asgi.md, transactions.md, migrating.md, fencing.md and security.md in docs/."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.db import models, transaction
from django.db.models import F
from django.http import Http404
from django.test import TestCase
from django.test.utils import isolate_apps
from django_redis.client import DefaultClient
from redis import Redis
from redis.lock import Lock

from django_redislock import EarlyReleaseWarning, LeaseLost, current_lease, redis_lock
from tests.blocks import DOCS, blocks, example
from tests.models import Product
from tests.test_decorators import held_elsewhere

ASGI, TRANSACTIONS = blocks("asgi.md"), blocks("transactions.md")
MIGRATING, FENCING = blocks("migrating.md"), blocks("fencing.md")

run = partial(example, redis_lock=redis_lock)


def elsewhere(call: Callable[[], Any]) -> Any:
    """In another thread, for which this one is somebody else."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def held(name: str) -> bool:
    return redis_lock(name).holder() is not None


class TestAsgi:
    def test_the_twins(self) -> None:
        """A block, a decorated coroutine, and an acquire."""
        fetched: list[Any] = []

        async def fetch(product: int) -> None:
            fetched.append((product, await redis_lock("shop:1").aholder() is not None))

        example = run(ASGI[0], fetch=fetch)
        asyncio.run(example["refresh"](SimpleNamespace(pk=1, products=[7, 8])))
        assert fetched == [(7, True), (8, True)]
        with held_elsewhere("feed:3"):
            assert asyncio.run(example["follow"](3)) is None
        asyncio.run(example["try_it"]())
        assert not held("import")

    @pytest.mark.django_db(transaction=True)
    def test_over_the_border(self) -> None:
        """The lease goes along with the work."""
        pk = Product.objects.create(name="lamp", stock=7).pk
        example = run(ASGI[1], Product=Product)
        asyncio.run(example["rename"](pk, "chair"))
        assert Product.objects.get(pk=pk).name == "chair"

    def test_a_timeout(self) -> None:
        """It ends the block, and the lock."""

        async def build() -> None:
            await asyncio.sleep(60)

        text = ASGI[2].replace("timeout(60)", "timeout(0.05)")
        with pytest.raises(TimeoutError):
            asyncio.run(run(text, build=build)["brief"]())
        assert not held("report")

    def test_cancelled_when_it_is_lost(self) -> None:
        """As the loop of a leader would be."""

        async def one_step() -> None:
            await redis_lock("leader").aclear(reason="test")
            with pytest.raises(LeaseLost):
                await current_lease().aextend()
            await asyncio.sleep(60)

        with pytest.raises(LeaseLost):
            asyncio.run(run(ASGI[3], one_step=one_step)["lead"]())


@pytest.mark.django_db(transaction=True)
def test_names_from_objects() -> None:
    """docs/security.md: who may not see an object can't lock its name."""
    pk = Product.objects.create(name="lamp", stock=7).pk
    seen = []
    orders = Product.objects.annotate(owner=F("name"))
    charge = lambda order: seen.append(held(f"order:{order.pk}"))  # noqa: E731
    example = run(blocks("security.md")[0], Order=orders, charge=charge)
    with pytest.raises(Http404):
        example["pay"](SimpleNamespace(user="somebody else"), pk)
    example["pay"](SimpleNamespace(user="lamp"), pk)
    assert seen == [True]


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    def test_around_it(self) -> None:
        """The lock is held until the COMMIT, and no longer."""
        pk = Product.objects.create(name="lamp", stock=7).pk
        run(TRANSACTIONS[0], Product=Product)["sell"](pk)
        assert Product.objects.get(pk=pk).stock == 6
        assert not held(f"product:{pk}")

    def test_inside_of_one(self) -> None:
        """All are held until it ends."""
        seen: list[bool] = []
        look = lambda: seen.append(held("order:1"))  # noqa: E731
        orders = [SimpleNamespace(pk=1, save=look), SimpleNamespace(pk=2, save=look)]
        example = run(TRANSACTIONS[1], transaction=transaction)
        example["checkout"](orders)
        assert seen == [True, True]
        assert not held("order:1")

    def test_by_setting(self, settings: Any) -> None:
        """The same, from outside."""
        settings.REDISLOCK = run(TRANSACTIONS[2])["REDISLOCK"]
        with transaction.atomic():
            with redis_lock("order:1"):
                pass
            assert held("order:1")
        assert not held("order:1")

    def test_a_warning(self, settings: Any) -> None:
        """It tells which blocks need the setting above."""
        settings.REDISLOCK = run(TRANSACTIONS[3])["REDISLOCK"]
        with transaction.atomic(), pytest.warns(EarlyReleaseWarning), redis_lock("order:1"):
            pass


@pytest.mark.django_db
def test_in_the_tests_of_a_project() -> None:
    """What docs/transactions.md says of captureOnCommitCallbacks."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        with redis_lock("order:1", release="commit"):
            pass
        assert held("order:1")
    assert not held("order:1")


class TestMigrating:
    """Who has the old lock only, both, or ours only: what docs/migrating.md says of each pair."""

    @pytest.fixture(params=["cache.lock", "python-redis-lock", "pottery"])
    def locks(
        self, request: pytest.FixtureRequest, redis: Redis
    ) -> Iterator[tuple[Callable[[], Any], Callable[[], bool]]]:
        """The example, and whether the old lock is free to somebody else."""
        names = run(MIGRATING[0])
        if request.param == "cache.lock":
            old = lambda: cache.lock("import", timeout=60, blocking_timeout=0.2)  # noqa: E731
        elif request.param == "python-redis-lock":
            library = pytest.importorskip("redis_lock")
            names = run(MIGRATING[1], **names)
            old = lambda: library.Lock(redis, "import", expire=60, blocking=False)  # noqa: E731
        else:
            library = pytest.importorskip("pottery")
            client = run(MIGRATING[1], **names)["get_redis_connection"]
            names = run(MIGRATING[2], **names, get_redis_connection=client)
            old = lambda: library.Redlock(  # noqa: E731
                key="import", masters={redis}, context_manager_blocking=False
            )

        def free() -> bool:
            try:
                with old():
                    return True
            except Exception:
                return False

        yield names["import_lock"], free
        redis.delete("lock:import", "lock-signal:import", "redlock:import")

    def test_they_exclude_each_other(self, locks: Any) -> None:
        """While both are held, neither of them is free; afterwards both are."""
        both, free = locks
        with both() as lease:
            lease.check()
            assert not free()
            assert elsewhere(lambda: redis_lock("import").acquire(wait=0)) is None
        assert free()
        assert not held("import")

    def test_what_was_called_what(self) -> None:
        """The arguments in the table, with their defaults, are those of the other libraries."""
        table = (DOCS / "migrating.md").read_text(encoding="utf-8")
        redis_py = {"timeout": None, "blocking_timeout": None}
        theirs = {Lock: redis_py, DefaultClient.lock: redis_py}
        for library, name, arguments in (
            ("redis_lock", "Lock", {"expire": None, "auto_renewal": False}),
            ("pottery", "Redlock", {"auto_release_time": 10, "context_manager_timeout": -1}),
        ):
            theirs[getattr(pytest.importorskip(library), name)] = arguments
        for lock, arguments in theirs.items():
            parameters = inspect.signature(lock).parameters
            for argument, default in arguments.items():
                assert parameters[argument].default == default, (lock, argument)
                assert f"{argument}={default}`" in table, argument

    def test_a_hand_made_lock(self, settings: Any) -> None:
        """The old code and the new one are on one key."""
        caches = {"default": dict(settings.CACHES["default"])}
        caches["default"]["OPTIONS"] = {"CLIENT_CLASS": "django_redislock.client.LockingClient"}
        settings.CACHES = caches
        built: list[str] = []
        old, new = MIGRATING[3], MIGRATING[4]

        def inside_of_old() -> None:
            built.append("old")
            run(new, build=lambda: built.append("never"))["rebuild_report"]()

        def inside_of_new() -> None:
            built.append("new")
            run(old, build=lambda: built.append("never"))["rebuild_report"]()

        run(old, build=inside_of_old)["rebuild_report"]()
        run(new, build=inside_of_new)["rebuild_report"]()
        assert built == ["old", "new"]
        assert cache.get("lock:report") is None

    def test_in_the_end(self) -> None:
        """One is at it, the other does nothing."""
        built: list[bool] = []
        example = run(MIGRATING[5], build=lambda: built.append(held("report")))
        example["rebuild_report"]()
        with held_elsewhere("report"):
            example["rebuild_report"]()
        assert built == [True]


class TestFencing:
    @pytest.mark.django_db
    def test_the_first_example(self) -> None:
        """Reading and writing through the lease."""
        pk = Product.objects.create(name="lamp", stock=7).pk
        _, _, use = FENCING[0].partition("with redis_lock")
        run(f"with redis_lock{use}", Product=Product, pk=pk)
        assert Product.objects.get(pk=pk).stock == 6

    @isolate_apps("tests")
    def test_the_models(self) -> None:
        """With the base class, and without it."""
        definition, _, _ = FENCING[0].partition("with redis_lock")
        product = run(definition, models=models, __name__="tests.models")["Product"]
        # The example's manager is not yet written, and so is its base class.
        text = FENCING[2].replace("...", "return self.filter(sold=False)")
        ticket = run(text, SomebodyElsesModel=models.Model, __name__="tests.models")["Ticket"]
        for model in product, ticket:
            assert model._meta.get_field("fencing_token").default == 0
        assert callable(ticket.objects.unsold)

    @pytest.mark.django_db
    @pytest.mark.parametrize("line", FENCING[1].splitlines())
    def test_each_line(self, line: str) -> None:
        """Of the long example, on rows of its own."""
        one, two = (Product.objects.create(name=name, stock=7) for name in ("lamp", "chair"))
        with redis_lock("product") as lease:
            rows = Product.objects.fenced(lease)
            names = {
                "F": F,
                "Product": Product,
                "lease": lease,
                "message": {"fencing_token": lease.fencing_token},
                "pk": one.pk,
                "product": rows.get(pk=one.pk),
                "products": [rows.get(pk=two.pk)],
                "rows": rows,
                "shop": SimpleNamespace(products=Product.objects),
            }
            if line.startswith("await "):
                names = run(f"async def example():\n    return {line}", **names)
                assert async_to_sync(names["example"])() == one
            else:
                with transaction.atomic():
                    run(line, **names)
