"""The README's examples do what the README says."""

from __future__ import annotations

import ast
import asyncio
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

import django_redislock
from django_redislock import LeaseLost, LockNotAcquired, conf, redis_lock
from django_redislock.arguments import MIN_TTL

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
    assert len(BLOCKS) == 11
    for text in BLOCKS:
        compile(text, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_first_screen(redis: Redis, charge: Any, charged: list[int]) -> None:
    """It locks, gives a fencing token, and releases."""
    run(block("waits, renews"), charge=charge, invoice=None)
    assert len(charged) == 1
    assert charged[0] > 0
    assert redis_lock("invoice:42").holder() is None


def test_the_caches_entry() -> None:
    """It is one that django-redis serves."""
    caches = run(block("CACHES = {"))["CACHES"]
    assert caches["default"]["BACKEND"] == "django_redis.cache.RedisCache"


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


def test_the_settings() -> None:
    """The README shows every setting with its default."""
    shown = run(block("REDISLOCK = {"))["REDISLOCK"]
    assert conf._parse(shown).patterns == [("report:*", {"ttl": 300.0, "wait": 0.0})]
    shown.pop("LOCKS")
    assert shown.pop("PREFIX") == conf.prefix()
    defaults = {field.upper(): value for field, value in conf.Policy()._asdict().items()}
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


def test_the_fenced_write() -> None:
    """A row that has seen a larger fencing token refuses the write."""
    text = block("LateWrite")

    class LateWrite(Exception):
        pass

    class Rows:
        """The one row of a table, as far as the example needs it."""

        fence = 0
        stock = 7

        def filter(self, *, pk: int, fence__lte: int) -> Rows:
            self.largest = fence__lte
            return self

        def update(self, **values: int) -> int:
            if self.fence > self.largest:
                return 0
            vars(self).update(values)
            return 1

    rows = Rows()
    names = {
        "Product": SimpleNamespace(objects=rows),
        "product": SimpleNamespace(pk=1),
        "compute": lambda product: rows.stock - 1,
        "LateWrite": LateWrite,
    }
    run(text, **names)
    assert rows.stock == 6
    assert rows.fence > 0

    def overtaken(product: object) -> int:
        rows.fence += 3_600_000_000  # a newer holder has shown its token
        return 0

    with pytest.raises(LateWrite):
        run(text, **names | {"compute": overtaken})
    with pytest.raises(LateWrite):
        run(text, **names)
    assert rows.stock == 6
