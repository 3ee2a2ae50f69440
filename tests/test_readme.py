"""The README's examples do what the README says."""

from __future__ import annotations

import ast
import asyncio
import re
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.core.management import call_command
from django.db import models, transaction
from django.dispatch import receiver
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.test.utils import isolate_apps
from redis import Redis

import django_redislock
from devtools.redis_server import RedisServer, find_server
from django_redislock import (
    LeaseLost,
    LockNotAcquired,
    StaleLease,
    current_lease,
    redis_lock,
    signals,
)
from django_redislock.client import Lock
from django_redislock.fencing import FencedModel
from django_redislock.periodic import registry
from django_redislock.settings import conf
from django_redislock.settings.policy import Policy
from django_redislock.settings.validators import MIN_TTL
from tests.faults.caches import caches
from tests.models import Product
from tests.waiting import eventually

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(*words: str) -> str:
    """The one example that contains all of these words."""
    (found,) = [text for text in BLOCKS if all(word in text for word in words)]
    return found


def run(text: str, **names: Any) -> dict[str, Any]:
    """Run an example, with what the README takes for granted: our names, and `names`."""
    namespace = {name: getattr(django_redislock, name) for name in django_redislock.__all__}
    namespace |= {"transaction": transaction, "__name__": "readme"} | names
    if re.search(r"^async with", text, re.MULTILINE):
        text = "async def example():\n" + textwrap.indent(text, "    ")
        exec(compile(text, "README.md", "exec"), namespace)
        asyncio.run(namespace["example"]())
    else:
        exec(compile(text, "README.md", "exec"), namespace)
    return namespace


@pytest.fixture
def charged() -> list[int]:
    return []


@pytest.fixture
def charge(charged: list[int]) -> Callable[..., None]:
    def charge(invoice: object, fencing_token: int = 0) -> None:
        assert redis_lock("invoice:42").holder() is not None, "not under the lock"
        charged.append(fencing_token)

    return charge


def test_every_block_is_python() -> None:
    """And there are as many as the tests below run."""
    assert len(BLOCKS) == 21
    for text in BLOCKS:
        compile(text, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_first_screen(redis: Redis, charge: Any, charged: list[int]) -> None:
    """It locks, gives a fencing token, and releases."""
    run(block("waits, renews"), charge=charge, invoice=None)
    assert len(charged) == 1
    assert charged[0] > 0
    assert redis_lock("invoice:42").holder() is None


def test_testing(charged: list[int]) -> None:
    """What takes the lock is seen to do so, and finds it busy, without a server."""

    @redis_lock("invoice:42")
    def charge(invoice: object) -> None:
        charged.append(42)

    text = block("@locks_always_free()")
    example = run(text.replace(": ...", ": charge(1)"), charge=charge, invoice=None)
    example["test_it_locks"]()
    assert charged == [42]
    with pytest.raises(LockNotAcquired):
        example["test_somebody_else_is_at_it"]()


def test_what_is_added_to_the_settings() -> None:
    """The cache is one that django-redis serves, and the app is ours."""
    added = run(block("CACHES = {"), INSTALLED_APPS=[])
    assert added["CACHES"]["default"]["BACKEND"] == "django_redis.cache.RedisCache"
    assert added["INSTALLED_APPS"] == [django_redislock.__name__]


def test_blocks() -> None:
    """They run when the lock is free, and raise when it is not."""
    run(block("raises LockNotAcquired after"))
    run(block("async with redis_lock"))
    lease = redis_lock("invoice:42").acquire()
    assert lease is not None
    with pytest.raises(LockNotAcquired):
        run(block("async with redis_lock").replace("wait=5", "wait=0.1"))
    lease.release()


def test_functions(redis: Redis) -> None:
    """Names from arguments, skipping, methods, current_lease()."""
    example = run(block("report:{report.pk}"))
    report = SimpleNamespace(pk=7)
    lease = redis_lock("report:7").acquire()
    assert lease is not None

    async def elsewhere() -> Any:
        return await asyncio.to_thread(example["rebuild"], report)

    assert asyncio.run(elsewhere()) is None
    lease.release()
    asyncio.run(example["sync"](3))

    saved = []
    importer = example["Importer"]()
    importer.source = "bank"
    importer.lines = lambda: iter(["a", "b"])
    importer.save = saved.append
    importer.run()
    assert saved == ["a", "b"]

    def cut() -> Any:
        yield "a"
        redis_lock("import:bank").clear(reason="test")
        django_redislock.current_lease().extend()

    importer.lines = cut
    with pytest.raises(LeaseLost):
        importer.run()


def test_a_lease_in_your_hands(capsys: pytest.CaptureFixture[str]) -> None:
    """It is entered when the lock is free, and tells who holds it when it is not."""
    text = block("somebody else is at it")
    lease = run(text)["lease"]
    assert lease.state == "released"
    lease = redis_lock("import").acquire()
    assert lease is not None

    def elsewhere() -> None:
        run(text)

    asyncio.run(asyncio.to_thread(elsewhere))  # type: ignore[arg-type]
    assert lease.owner in capsys.readouterr().out
    lease.release()


@pytest.mark.django_db(transaction=True)
def test_until_the_transaction_has_ended() -> None:
    """It is held inside of the transaction, and free afterwards."""
    text = block('release="commit"')
    held: list[bool] = []
    text = text.replace("pay(order)   ", "pay(order); look()   ")
    assert "look()" in text
    run(
        text,
        order=SimpleNamespace(pk=1),
        look=lambda: held.append(redis_lock("order:1").holder() is not None),
    )
    assert held == [True]
    assert redis_lock("order:1").holder() is None


def test_long_and_nested_work() -> None:
    """The decorators are accepted, and recursion works."""
    example = run(block("def clean_up", "def visit", "def follow"))
    example["clean_up"]()
    example["visit"](None)
    asyncio.run(example["follow"](None))


def test_views() -> None:
    """They answer without their lock, and without the header that one requires."""
    text = block("import idempotent_view").replace(": ...", ": return done")
    example = run(text, done=HttpResponse())
    request = RequestFactory().post("/")
    request.user = SimpleNamespace(pk=3, is_authenticated=True)
    assert example["checkout"](request).status_code == 200
    lease = redis_lock("checkout:3").acquire()
    assert lease is not None

    async def elsewhere() -> Any:
        return await asyncio.to_thread(example["checkout"], request)

    assert asyncio.run(elsewhere()).status_code == 409
    lease.release()
    assert example["order"](request).status_code == 400


def test_the_command() -> None:
    """It runs under its lock."""
    held = []
    text = block("LockedCommand").replace(": ...", ": look()")
    look = lambda: held.append(current_lease().name)  # noqa: E731
    command = run(text, look=look, __name__="shop.management.commands.nightly")["Command"]
    call_command(command(), lock_wait=0)
    assert held == ["command:nightly"]


def test_the_drop_in() -> None:
    """It is a client class that django-redis takes."""
    caches = {"default": dict(settings.CACHES["default"])}
    run(block("LockingClient"), CACHES=caches)
    with override_settings(CACHES=caches), cache.lock("readme"):
        assert isinstance(cache.lock("readme"), Lock)


def test_the_receiver(capsys: pytest.CaptureFixture[str]) -> None:
    """It hears of a lost lease, and why."""
    receiver_of = {"receiver": receiver, "lock_lost": signals.lock_lost}
    alert = run(block("@receiver"), **receiver_of)["alert"]
    lease = redis_lock("job").acquire()
    assert lease is not None
    redis_lock("job").clear(reason="to be told")
    with pytest.raises(LeaseLost):
        lease.extend()
    written = ""

    def told() -> bool:
        nonlocal written
        written += capsys.readouterr().out
        return "to be told" in written

    eventually(told)
    assert signals.lock_lost.disconnect(alert)


def test_periodic_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes a job, and stays a function."""
    monkeypatch.setattr(registry, "_registry", {})
    example = run(block("@periodic"))
    [known] = registry.jobs()
    assert known.function is example["tidy_up"]
    assert known.words() == "every minute"


def test_the_settings() -> None:
    """The README shows every setting with its default."""
    shown = run(block("REDISLOCK = {"))["REDISLOCK"]
    assert conf.parse(shown).locks.find("report:7") == {"ttl": 300.0, "wait": 0.0}
    assert conf.parse(shown).jobs.find("legacy.x") == {"enabled": False}
    del shown["LOCKS"], shown["JOBS"]
    kinds = conf.ENTRY_VALIDATORS.keys() - conf.PROJECT_VALIDATORS.keys()  # of LOCKS only
    defaults = {
        field.upper(): value for field, value in Policy()._asdict().items() if field not in kinds
    }
    assert shown == defaults
    assert shown["TTL"] > MIN_TTL


def test_errors(capsys: pytest.CaptureFixture[str], charge: Any) -> None:
    """The attributes that it names are there."""
    text = block("except LockUnavailable").replace("wait=5", "wait=0")
    lease = redis_lock("invoice:42").acquire()
    assert lease is not None

    def elsewhere() -> None:
        run(text, charge=charge, invoice=None)

    asyncio.run(asyncio.to_thread(elsewhere))  # type: ignore[arg-type]
    assert lease.owner in capsys.readouterr().out
    lease.release()
    run(text.replace("wait=0", "wait=0, using='default'"), charge=charge, invoice=None)

    def lose(invoice: object) -> None:
        redis_lock("invoice:42").clear(reason="test", by="eva")

    run(text, charge=lose, invoice=None)
    assert "cleared by eva" in capsys.readouterr().out


def test_several_at_a_time(redis: Redis) -> None:
    """How many hold it while the body runs, and as what."""
    seen: list[bytes] = []

    def look(name: str) -> Callable[[], None]:
        key = f"redislock:{{{name}}}:holders"
        return lambda: seen.extend(record.rpartition(b"\t")[2] for record in redis.hvals(key))

    catalogue = look("catalogue")
    run(block("ReadWriteLock("), export=look("exports"), show=catalogue, rebuild=catalogue)
    assert [what.partition(b"|")[0] for what in seen] == [b"semaphore", b"read", b"write"]
    assert seen[0] == b"semaphore|3"
    assert not redis.exists("redislock:{exports}", "redislock:{catalogue}")


def test_once() -> None:
    """Each does what its comment says, at the first call and at the second."""
    text = block("warm-cache", "single_flight").replace(
        "rates(currency): ...", "rates(currency): return fetch()"
    )
    calls: list[str] = []

    def names(word: str) -> Callable[[], str]:
        return lambda: calls.append(word) or word  # type: ignore[func-returns-value]

    words = {"warm_cache": "warm", "make_salt": "salt", "fetch": "rates"}
    for _ in range(2):
        example = run(text, **{name: names(word) for name, word in words.items()})
        assert asyncio.run(example["rates"]("EUR")) == "rates"
        assert example["salt"] == "salt"
        example["consume"]({"id": 7})
    assert sorted(calls) == ["rates", "salt", "warm"]


def test_several_names_several_servers(settings: Any, redis: Redis) -> None:
    """Both names are held, and a majority of the servers."""
    found = find_server()
    if found.url is not None:
        pytest.skip("needs servers of its own")
    seen: list[int] = []

    def transfer(*_: object, fencing_tokens: dict[str, int]) -> None:
        seen.append(len(fencing_tokens))
        seen.append(int(redis.exists("redislock:{account:1}", "redislock:{account:2}")))

    one, two = SimpleNamespace(pk=1), SimpleNamespace(pk=2)
    with ExitStack() as stack:
        servers = {f"redis-{letter}": stack.enter_context(RedisServer(found)) for letter in "abc"}
        entries = {name: caches(server.url)["default"] for name, server in servers.items()}
        settings.CACHES = settings.CACHES | entries

        def export() -> None:
            for server in servers.values():
                with Redis.from_url(server.url) as client:
                    seen.append(int(client.exists("redislock:{export}")))

        run(block("MultiLock("), source=one, target=two, transfer=transfer, export=export)
    assert seen[:2] == [2, 2]
    assert sum(seen[2:]) >= 2


@pytest.mark.django_db
def test_the_fenced_write() -> None:
    """A row that has been shown a newer fencing token refuses the write."""
    text = block("with redis_lock(f", "fenced(lease)")
    pk = Product.objects.create(name="lamp", stock=7).pk
    run(text, Product=Product, pk=pk)
    assert Product.objects.get(pk=pk).stock == 6

    def overtake() -> None:
        Product.objects.fenced(current_lease().fencing_token + 1).get(pk=pk)

    overtaken = text.replace("product.stock -= 1", "product.stock -= 1; overtake()")
    assert overtaken != text
    with pytest.raises(StaleLease):
        run(overtaken, Product=Product, pk=pk, overtake=overtake)
    assert Product.objects.get(pk=pk).stock == 6


@isolate_apps("tests")
def test_the_fenced_model() -> None:
    """It has a column for the token."""
    text = block("class Product(FencedModel)")
    product = run(text, FencedModel=FencedModel, models=models, __name__="tests.models")["Product"]
    assert {field.name for field in product._meta.fields} == {"id", "stock", "fencing_token"}
