"""Who asks the shop for something, by HTTP, and looks behind it at its Redis and database."""

from __future__ import annotations

import json
import math
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from redis import Redis

from devtools.redis_server import RedisServer
from tests.servers.server import Server
from tests.waiting import PATIENCE, eventually

PREFIX = "redislock-shop"


class Answer(NamedTuple):
    status: int
    headers: Any
    body: str

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Connection(HTTPConnection):
    """One that takes in no more than is read from it, or what a server sends would be gone from
    there before anybody has it."""

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)


class Visitor:
    def __init__(self, server: Server, redis_server: RedisServer, database: Path) -> None:
        self.server = server
        self.redis_server = redis_server
        self._database = database
        self._others = ThreadPoolExecutor(16)

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.server.close()  # first, so that nobody waits for an answer any more
        self._others.shutdown()

    # What a visitor does.

    @contextmanager
    def asking(
        self, method: str, path: str, data: dict[str, Any] | None = None, **headers: str
    ) -> Iterator[HTTPConnection]:
        """A connection on which that was asked; it is closed when the block is left."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None
        if data is not None and "Idempotency-Key" in fields:
            body = json.dumps(data)
        elif data is not None:
            body = urlencode(data)
            fields["Content-Type"] = "application/x-www-form-urlencoded"
        connection = Connection("127.0.0.1", self.server.port, timeout=PATIENCE)
        with closing(connection):
            connection.request(method, path, body, {"Connection": "close", **fields})
            yield connection

    def ask(self, *args: Any, **headers: str) -> Answer:
        """Ask, and wait for the answer."""
        with self.asking(*args, **headers) as connection:
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())

    def ask_meanwhile(self, *args: Any, **headers: str) -> Future[Answer]:
        """Let another one ask."""
        return self._others.submit(self.ask, *args, **headers)

    @contextmanager
    def downloading(self, path: str) -> Iterator[HTTPResponse]:
        """An answer that is to be read; whatever is not read is left."""
        with self.asking("GET", path) as connection, closing(connection.getresponse()) as response:
            assert response.status == 200
            yield response

    # What is behind it.

    @contextmanager
    def redis(self) -> Iterator[Redis]:
        with Redis.from_url(self.redis_server.url) as client:
            yield client

    def token(self, name: str) -> bytes:
        """That of who holds the lock; empty when it is free."""
        with self.redis() as redis:
            value: bytes = redis.get(f"{PREFIX}:{{{name}}}") or b""
            return value[:32]

    def is_held(self, name: str) -> bool:
        return bool(self.token(name))

    def await_release(self, name: str, token: bytes) -> None:
        """Return when who had that token has released the lock: when its lease has ended by
        itself, the lock is free as well, but that is not what is wanted."""
        key = f"{PREFIX}:{{{name}}}"
        ends = math.inf
        with self.redis() as redis:

            def goes() -> bool:
                nonlocal ends
                value, left = redis.pipeline().get(key).pttl(key).execute()
                if (value or b"").startswith(token):
                    ends = time.monotonic() + left / 1000
                    return False
                return True

            eventually(goes)
        assert time.monotonic() < ends, "the lease has ended by itself"

    def await_queue(self, name: str, length: int, kind: str = "") -> None:
        """Return when so many wait for the lock; with the kind `key:`, for that of a drop-in."""
        with self.redis() as redis:
            eventually(lambda: redis.zcard(f"{PREFIX}:{kind}{{{name}}}:queue") == length)

    def await_waiting(self) -> None:
        """Return when a view waits for an event: it asks the cache again and again, by DEL."""
        with self.redis() as redis:
            before = self._deletes(redis)
            eventually(lambda: self._deletes(redis) > before + 4)

    @staticmethod
    def _deletes(redis: Redis) -> int:
        stats: dict[str, Any] = redis.info("commandstats")
        return stats.get("cmdstat_del", {"calls": 0})["calls"]  # type: ignore[no-any-return]

    def happens(self, event: str) -> None:
        """What the shop waits for. As its view does it, for servers whose workers are all busy."""
        with self.redis() as redis:
            redis.set(f":1:{event}", 1)

    def product(self, stock: int) -> int:
        """The primary key of a new one."""
        query = "INSERT INTO shop_product (name, stock) VALUES ('lamp', ?) RETURNING id"
        return self._query(query, stock)

    def stock(self, product: int) -> int:
        return self._query("SELECT stock FROM shop_product WHERE id = ?", product)

    def orders(self, product: int) -> int:
        return self._query("SELECT COUNT(*) FROM shop_order WHERE product_id = ?", product)

    def _query(self, query: str, argument: int) -> int:
        with closing(sqlite3.connect(self._database, timeout=PATIENCE)) as database, database:
            number: int = database.execute(query, [argument]).fetchone()[0]
            return number
