"""What a type checker makes of functions that are decorated: what it made of them before, unless
a call may end without its result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import assert_type

from django.http import HttpRequest, HttpResponse
from django.views import View

from django_redislock import (
    MultiLock,
    ReadWriteLock,
    Semaphore,
    deduplicate,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.periodic import periodic
from django_redislock.views import idempotent_view, lock_view


@redis_lock("report:{pk}", ttl=60, wait=0)
def rebuild(pk: int, *, quietly: bool = False) -> str:
    return f"{pk} {quietly}"


assert_type(rebuild(1), str)
assert_type(rebuild(pk=1, quietly=True), str)
rebuild("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
rebuild(1, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def export(pk: int) -> str:
    return str(pk)


named_by: Callable[[int], str] = "report:{}".format
assert_type(redis_lock()(export)(1), str)
assert_type(redis_lock(named_by)(export)(1), str)


@redis_lock("sync:{shop}")
async def sync(shop: str) -> bytes:
    return shop.encode()


@redis_lock("lines")
def lines(count: int) -> Iterator[str]:
    yield from map(str, range(count))


@redis_lock("feed")
async def feed() -> AsyncIterator[int]:
    yield 1


for line in lines(3):
    assert_type(line, str)


class Importer:
    source: str

    @redis_lock("import:{self.source}")
    def run(self, limit: int = 0) -> list[str]:
        return [self.source][:limit]

    @redis_lock("import:{self.source}")
    async def arun(self) -> list[str]:
        return [self.source]

    @classmethod
    @redis_lock("import")
    def all(cls) -> Importer:
        return cls()

    @redis_lock("one")
    @classmethod
    def one(cls) -> Importer:
        return cls()

    @staticmethod
    @redis_lock("count")
    def count(of: str) -> int:
        return len(of)


assert_type(Importer().run(3), list[str])
assert_type(Importer.all(), Importer)
assert_type(Importer.one(), Importer)
assert_type(Importer.count("a"), int)
Importer().run("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@single_flight("rates:{currency}", ttl=60)
async def rates(currency: str) -> dict[str, float]:
    return {currency: 1.0}


assert_type(Semaphore("exports", 3)(export)(1), str)
assert_type(MultiLock(["account:{pk}", "export:{pk}"])(export)(1), str)
assert_type(ReadWriteLock("catalogue").read()(export)(1), str)
assert_type(once("warm:{pk}", ttl=3600)(export)(1), str | None)
assert_type(deduplicate("order:{pk}")(export)(1), str | None)


@lock_view("checkout:{request.user.pk}", wait=5, max_waiters=2)
def checkout(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(str(pk))


@idempotent_view(
    required=True, max_size=1000, scope=lambda request: request.headers.get("X-Api-Key")
)
async def order(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


assert_type(checkout(HttpRequest(), 1), HttpResponse)


@periodic(every=60)
def tidy_up() -> None: ...


assert_type(tidy_up(), None)


@lock_view("checkout:{request.user.pk}", methods=["POST"])
class Checkout(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.path)


assert_type(Checkout().post(HttpRequest()), HttpResponse)
class_of_checkout: type[Checkout] = Checkout


@idempotent_view()
class Order(View):
    @lock_view("order:{request.user.pk}", status=423)
    async def post(self, request: HttpRequest, pk: int = 0) -> HttpResponse:
        return HttpResponse(request.path)


class_of_order: type[Order] = Order
lock_view("a", timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
lock_view("a")(3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


async def coroutines() -> None:
    assert_type(await sync("a"), bytes)
    async for item in feed():
        assert_type(item, int)
    assert_type(await Importer().arun(), list[str])
    assert_type(await rates("EUR"), dict[str, float])
    assert_type(await order(HttpRequest()), HttpResponse)
    assert_type(await Order().post(HttpRequest(), pk=1), HttpResponse)
