"""What the package uses of redis-py and django-redis that is private: docs/versions.md lists all
of it, and locks work without it."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import django_redis
import pytest
import redis
from django.core.cache import caches
from django.test import override_settings
from redis import Connection, ConnectionPool, UnixDomainSocketConnection

from devtools.redis_server import RedisServer
from django_redislock import redis_lock
from django_redislock.base.clock import now
from django_redislock.primitives.waiting import NEVER
from django_redislock.transport import connections
from django_redislock.transport import entries as of_caches
from django_redislock.transport.subscription import Subscription
from tests.caches import caches as entries
from tests.test_lines import ask
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


def names_of(package: ModuleType) -> set[str]:
    """The private names that the objects of a package have."""
    found: set[str] = set()
    for path in Path(package.__path__[0]).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"\b(?:self|cls)\.(_[a-z]\w*)", text))
        found |= set(re.findall(r"^    (?:async )?def (_[a-z]\w*)", text, re.MULTILINE))
    return found


def used_in(tree: ast.AST) -> Iterator[str]:
    """The names of attributes of other objects than `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            if not isinstance(node.value, ast.Call):  # super()
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            yield ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else ""


def test_all_of_it_is_listed() -> None:
    """In modules that import redis-py or django-redis, private names of theirs are those of the
    table."""
    theirs = names_of(redis) | names_of(django_redis)
    used: set[str] = set()
    for path in (ROOT / "django_redislock").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^ *(?:from|import) (?:redis|django_redis)\b", text, re.MULTILINE):
            used |= {name for name in used_in(ast.parse(text)) if name in theirs}
    used.remove("_close")  # of our own Lease, in client.py
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    table = page.partition("| private attribute |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert used == set(re.findall(r"`(?:\w+\.)?(_\w+)`", "".join(cells)))


class Opaque:
    """A connection that keeps its socket to itself."""

    def __init__(self, **options: Any) -> None:
        kind = UnixDomainSocketConnection if "path" in options else Connection
        self.__dict__["its"] = kind(**options)

    def __getattr__(self, name: str) -> Any:
        if name == "_sock":
            raise AttributeError(name)
        return getattr(self.its, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.its, name, value)


def test_a_connection_without_its_socket(redis_server: RedisServer) -> None:
    """Requests, waiting with a limit and messages work by the public methods of redis-py."""
    pool = ConnectionPool.from_url(redis_server.url, socket_timeout=10)
    pool.connection_class = Opaque
    for until in (NEVER, now() + 5.0):
        for _ in range(2):
            assert ask(pool, "return {1, 7}", until) == [1, 7]
    assert not pool._in_use_connections
    subscription = Subscription(pool)
    assert subscription._socket is None
    assert subscription.client_id()
    subscription.send("SUBSCRIBE", "redislock-private")
    assert [heard.kind for heard in subscription.messages(PATIENCE)] == [b"subscribe"]
    subscription.left_behind()  # nothing to close
    subscription.close()
    pool.disconnect()


class Renamed:
    """A `Retry` whose parts have other names."""


def test_a_retry_with_other_parts(redis_server: RedisServer) -> None:
    """An event loop's connection has redis-py's own default then."""

    async def main() -> None:
        async with redis_lock("job") as lease:
            await lease.aextend()

    options = {"CONNECTION_POOL_KWARGS": {"retry": Renamed()}}
    with override_settings(CACHES=entries(redis_server.url + "&client_name=retry", **options)):
        asyncio.run(main())
    assert connections._async_retry(Renamed()) is None


@pytest.mark.parametrize("form", ["one", "text", "list"])
def test_a_client_without_its_servers(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Their addresses are taken from the settings, and are the same."""
    both = [redis_server.url, f"{redis_server.url}&db=1"]
    location: Any = {"one": both[0], "text": ",".join(both), "list": both}[form]
    with override_settings(CACHES=entries(location)):
        client = caches["default"].client
        before = of_caches._urls_of(client, "default")
        monkeypatch.delattr(client, "_server")
        assert of_caches._urls_of(client, "default") == before
        with redis_lock("job"):
            pass
