"""When the lock of a view is released: after its transactions, and after its response."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from redis import Redis

from django_redislock import LeaseLost, LeaseState, current_lease, redis_lock
from django_redislock.transport.ports import BasePort
from django_redislock.views import lock_view
from tests.calling import watch
from tests.models import Shop
from tests.views import forms
from tests.views.forms import at_root, wsgi
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{order:7}"

on_each_database = pytest.mark.parametrize(
    "alias",
    [
        pytest.param(
            "default",
            marks=pytest.mark.django_db(transaction=True, databases=["default", "other"]),
            id="sqlite",
        ),
        pytest.param(
            "postgres",
            marks=pytest.mark.django_db(transaction=True, databases=["postgres"]),
            id="postgres",
        ),
    ],
)
on_sqlite = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Switch ATOMIC_REQUESTS on for a database."""

    def switch(alias: str) -> None:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)

    return switch


@pytest.fixture
def held(redis: Redis) -> Callable[[], bool]:
    return lambda: bool(redis.exists(KEY))


class Next:
    """Who waits for the lock, and looks at the database as soon as it has it."""

    def __init__(self, redis: Redis, alias: str) -> None:
        self._redis, self._alias = redis, alias
        self._thread = ThreadPoolExecutor(1)
        self._result: Any = None

    def queue(self) -> None:
        """Wait for the lock from here on."""
        self._result = self._thread.submit(self._look)
        eventually(lambda: self._redis.zcard(f"{KEY}:queue"))

    def _look(self) -> int | str:
        try:
            with redis_lock("order:7", wait=PATIENCE):
                return Shop.objects.using(self._alias).count()
        except DatabaseError as error:  # SQLite, where somebody has not committed yet
            return str(error)
        finally:
            # The connection itself: Django keeps those to databases in memory open.
            connection = connections[self._alias].connection
            if connection is not None:
                connection.close()
            connections[self._alias].connection = None

    def saw(self) -> int | str:
        """How many rows there were."""
        with self._thread:
            return self._result.result(PATIENCE)  # type: ignore[no-any-return]


@on_each_database
class TestCommit:
    """The next holder sees what was committed: it has the lock after the COMMIT."""

    @pytest.fixture
    def write(self, redis: Redis, alias: str) -> Callable[..., HttpResponse]:
        """The body of a view: somebody waits for its lock, and it writes a row."""
        self.next = Next(redis, alias)

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            Shop.objects.using(alias).create(name="order")
            self.next.queue()
            return HttpResponse("done")

        return body

    @pytest.mark.parametrize(
        "form", [forms.function, forms.class_based, forms.dispatch_decorated, forms.api_function]
    )
    def test_atomic_requests(
        self, form: Any, alias: str, write: Any, atomic_requests: Callable[[str], None]
    ) -> None:
        """Django's transaction is around the decorator; nothing had to be said."""
        atomic_requests(alias)
        with at_root(form(lock_view("order:{pk}"), write)):
            assert wsgi("post").status_code == 200
        assert self.next.saw() == 1

    def test_released_by_the_view_it_would_not(
        self, alias: str, write: Any, atomic_requests: Callable[[str], None], redis: Redis
    ) -> None:
        """Then the next one reads too early: what the default is there for."""
        atomic_requests(alias)

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            lock_view("order:{pk}", release="exit")(write)(request, pk)
            return HttpResponse(f"{self.next.saw()}")

        with at_root(body):
            assert wsgi("post").content != b"1"

    def test_atomic_around_the_view(self, alias: str, write: Any) -> None:
        """By a decorator, or a middleware, outside of ours."""
        view = transaction.atomic(using=alias)(lock_view("order:{pk}")(write))
        with at_root(view):
            wsgi("post")
        assert self.next.saw() == 1

    def test_rollback(
        self, alias: str, write: Any, atomic_requests: Callable[[str], None]
    ) -> None:
        """The lock is free afterwards, and there is nothing to see."""
        atomic_requests(alias)

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            write(request, pk)
            raise ZeroDivisionError

        with at_root(lock_view("order:{pk}")(body)), pytest.raises(ZeroDivisionError):
            wsgi("post")
        assert self.next.saw() == 0


def chunks(pk: int) -> Iterator[bytes]:
    yield b"one"
    yield b"two"


async def achunks(pk: int) -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


def stream(request: HttpRequest, pk: int) -> HttpResponseBase:
    return StreamingHttpResponse(chunks(pk))


def post() -> Any:
    return RequestFactory().post("/7/")


def locked(body: Any, **options: Any) -> Any:
    return lock_view("order:{pk}", **options)(body)


class TestStreaming:
    @pytest.mark.parametrize("sent", [0, 1, 2])
    def test_held_until_it_is_closed(self, sent: int, held: Callable[[], bool]) -> None:
        """While the server iterates, and until it closes the response: at once (HEAD), early,
        since the client has gone away, or at the end."""
        response = locked(stream)(post(), 7)
        for part in islice(response, sent):
            assert part in (b"one", b"two")
            assert held()
        assert held()
        response.close()
        assert not held()

    def test_dropped(self, held: Callable[[], bool]) -> None:
        """When a middleware fails, Django forgets the response without closing it."""
        response = locked(stream, ttl=600)(post(), 7)
        assert held()
        del response
        gc.collect()
        eventually(lambda: not held())

    def test_a_file(self, held: Callable[[], bool], tmp_path: Path) -> None:
        """The server may still send it by itself, and closes it afterwards."""
        (tmp_path / "report").write_bytes(b"42")

        def body(request: HttpRequest, pk: int) -> HttpResponseBase:
            return FileResponse((tmp_path / "report").open("rb"))

        response = locked(body)(post(), 7)
        assert response.file_to_stream is not None
        assert held()
        response.close()
        assert not held()

    def test_renewed_while_it_is_sent(self, redis: Redis) -> None:
        """For longer than the lease lives."""
        response = locked(stream, ttl=0.3)(post(), 7)
        for _ in range(4):
            before = redis.pexpiretime("redislock:{order:7}")
            eventually(lambda before=before: redis.pexpiretime("redislock:{order:7}") != before)
        response.close()
        assert not redis.exists(KEY)

    def test_the_same_thread_asks_again(self, held: Callable[[], bool]) -> None:
        """A busy lock is busy for it, too, and is not its own: the thread serves somebody else
        by now."""
        response = locked(stream)(post(), 7)
        again = locked(stream, wait=0)(post(), 7)
        assert again.status_code == 409
        response.close()
        assert locked(stream, wait=0)(post(), 7).status_code == 200

    def test_released_by_the_view(self, held: Callable[[], bool]) -> None:
        """Who says so gets it, and so does `commit` where there is no transaction."""
        for release in ("exit", "commit"):
            response = locked(stream, release=release)(post(), 7)
            assert not held()
            assert list(response) == [b"one", b"two"]
            response.close()

    def test_closed_twice(self, redis: Redis) -> None:
        """The second time nothing is released, of whoever has the lock by then."""
        response = locked(stream)(post(), 7)
        response.close()
        with redis_lock("order:7", wait=0) as lease:
            response.close()
            assert redis.get(KEY).decode().startswith(lease.token)

    def test_lost_while_it_is_sent(self, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """Half of it is gone already; it can only be logged."""
        response = locked(stream, ttl=0.3)(post(), 7)
        redis.delete(KEY)
        response.close()
        assert "was lost before its transaction was committed" in caplog.text

    def test_lost_before_it_is_sent(self, redis: Redis) -> None:
        """The view fails, as without streaming."""

        def body(request: HttpRequest, pk: int) -> HttpResponseBase:
            redis.delete(KEY)
            lease = current_lease()
            eventually(lambda: lease.state == LeaseState.LOST)
            return stream(request, pk)

        with pytest.raises(LeaseLost):
            locked(body, ttl=0.3)(post(), 7)

    @on_sqlite
    def test_after_a_commit(
        self, held: Callable[[], bool], atomic_requests: Callable[[str], None]
    ) -> None:
        """The transaction has ended, and the lock is held until the response has, too."""
        atomic_requests("default")
        view = locked(stream)
        with at_root(view):
            response = wsgi("post")
            assert held()
            assert not connections["default"].in_atomic_block
            assert b"".join(response) == b"onetwo"
            response.close()
        assert not held()

    @on_sqlite
    def test_sent_before_the_commit(self, held: Callable[[], bool]) -> None:
        """As a middleware does that reads the response inside of a transaction."""
        with transaction.atomic():
            response = locked(stream)(post(), 7)
            response.close()
            assert held()
        assert not held()

    async def test_an_async_generator_is_closed_first(self, held: Callable[[], bool]) -> None:
        """Django doesn't, when the client goes away; its `finally` runs under the lock."""
        ended = []

        async def parts() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                yield b"two"
            finally:
                ended.append(held())

        async def body(request: HttpRequest, pk: int) -> HttpResponseBase:
            return StreamingHttpResponse(parts())

        response = await locked(body)(post(), 7)
        content = aiter(response)
        assert await anext(content) == b"one"
        await sync_to_async(response.close)()
        assert ended == [True]
        assert not held()
        await content.aclose()

    def test_an_async_view(
        self, held: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ASGI servers close the response in a thread; who closes it in the loop doesn't stop
        that for Redis."""

        async def body(request: HttpRequest, pk: int) -> HttpResponseBase:
            return StreamingHttpResponse(achunks(pk))

        threads: set[threading.Thread] = set()
        script = BasePort.script

        async def elsewhere(*args: Any) -> Any:
            threads.add(threading.current_thread())
            return await script(*args)

        async def ask(in_thread: bool) -> None:
            response = await locked(body)(post(), 7)
            async for _ in response:
                assert held()
            assert held()
            if in_thread:
                await sync_to_async(response.close)()
                assert not held()
            else:
                with monkeypatch.context() as patch:
                    watch(patch, elsewhere)
                    response.close()
                assert threading.current_thread() not in threads
                while held():
                    await asyncio.sleep(0.002)

        for in_thread in (True, False):
            asyncio.run(asyncio.wait_for(ask(in_thread), PATIENCE))
