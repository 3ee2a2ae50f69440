"""What the package uses of redis-py and django-redis that is private: docs/versions.md lists all
of it, and locks work without it."""

from __future__ import annotations

import ast
import asyncio
import re
from collections import deque
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
from django_redislock.transport import entries as meanings
from django_redislock.transport import pools, wire
from django_redislock.transport.subscription import Subscription
from tests.faults.caches import caches as entries
from tests.test_wire import checkout, give_back
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


class Slots(set[Any]):
    """As a set, and yet another type."""


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[ConnectionPool]:
    pool = ConnectionPool.from_url(redis_server.url, socket_timeout=10)
    yield pool
    pool.disconnect()


@pytest.fixture
def called(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The public methods of the pool that were called."""
    called: list[str] = []
    for name in ("get_connection", "release"):
        way = getattr(pool, name)
        monkeypatch.setattr(
            pool, name, lambda *its, name=name, way=way: (called.append(name), way(*its))[1]
        )
    return called


@pytest.mark.parametrize("attribute", ["_available_connections", "_in_use_connections"])
def test_a_pool_that_keeps_connections_otherwise(
    pool: ConnectionPool, called: list[str], attribute: str
) -> None:
    """A pool with other collections than a list and a set is used by its public methods."""
    give_back(pool, checkout(pool))
    assert called == []
    kind = deque if attribute == "_available_connections" else Slots
    setattr(pool, attribute, kind(getattr(pool, attribute)))
    hand: list[Any] = []
    assert wire.plain_socket(pool, hand) is None
    assert hand == []
    connection = checkout(pool)
    give_back(pool, connection)
    assert called == ["get_connection", "release"]
    assert pool.get_connection() is connection


def test_a_pool_without_a_process(pool: ConnectionPool) -> None:
    """`pid` is not documented either."""
    give_back(pool, checkout(pool))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(pool, "pid")
        assert wire.plain_socket(pool, []) is None


def test_a_connection_without_the_token_of_its_user(
    pool: ConnectionPool, called: list[str]
) -> None:
    """Only redis-py knows then whether the connection has to authenticate anew."""
    connection = checkout(pool)
    del connection._re_auth_token
    connection.re_auth = lambda: None  # it looks at the attribute, too
    give_back(pool, connection)
    assert called == ["release"]


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
    for within in (None, 5.0):
        connection = checkout(pool, within)
        assert isinstance(connection, Opaque)
        word = "mine"
        packed = b"".join(connection.pack_command("EVAL", "return {ARGV[1], {7}}", 0, word))
        assert wire.ask(connection, packed, word, within) == [7]
        give_back(pool, connection)
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
    assert pools._async_retry(Renamed()) is None


@pytest.mark.parametrize("form", ["one", "text", "list"])
def test_a_client_without_its_servers(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Their addresses are taken from the settings, and are the same."""
    both = [redis_server.url, f"{redis_server.url}&db=1"]
    location: Any = {"one": both[0], "text": ",".join(both), "list": both}[form]
    with override_settings(CACHES=entries(location)):
        client = caches["default"].client
        before = meanings._urls_of(client, "default")
        monkeypatch.delattr(client, "_server")
        assert meanings._urls_of(client, "default") == before
        with redis_lock("job"):
            pass
