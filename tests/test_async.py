"""Event loops, their connections, and cancellation at every await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from redis import Redis

from django_redislock import current_lease, redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.server import server_of
from tests.lines import opened
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
QUEUE = f"{KEY}:queue"


@pytest.fixture(autouse=True)
def _no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests count connections, and it may need one at any time."""
    monkeypatch.setattr(watchdog(server_of("default")), "_show_at", float("inf"))


def others(redis: Redis) -> int:
    """Connections to the server besides the one that asks, and the process's own two."""
    ours = ("subscribe", "ping")  # the inbox; the watchdog renews nothing in these tests
    return sum(client["cmd"] not in ours for client in redis.client_list()) - 1


def unlocked(redis: Redis) -> bool:
    """Nothing is left of a lock or of its queue."""
    return not redis.exists(KEY, QUEUE, f"{KEY}:waiters") and not redis.zcard("redislock:index")


async def locked_view(request: HttpRequest) -> HttpResponse:
    async with redis_lock(f"view:{request.GET['n']}"):
        assert current_lease().name == f"view:{request.GET['n']}"
        return HttpResponse("ok")


urlpatterns = [path("locked", locked_view)]


@pytest.mark.slow
@override_settings(ROOT_URLCONF="tests.test_async", ALLOWED_HOSTS=["*"], MIDDLEWARE=[])
def test_500_async_views_under_wsgi_leave_no_connection(redis: Redis) -> None:
    """Each of them runs in an event loop of its own, which closes its connections at its end."""
    handler = WSGIHandler()
    factory = RequestFactory()
    before = others(redis)
    for number in range(500):
        response = handler.get_response(factory.get("/locked", {"n": number % 7}))
        assert response.content == b"ok"
        assert others(redis) <= before + 1
    eventually(lambda: others(redis) <= before)
    assert not opened()


def test_one_client_per_loop(redis: Redis) -> None:
    """All tasks of a loop share one pool, and a second server would get one of its own."""

    async def use(number: int) -> None:
        async with redis_lock(f"job:{number}"):
            pass

    async def main() -> int:
        await asyncio.gather(*(use(number) for number in range(200)))
        return len(opened())

    assert asyncio.run(main()) == 1


async def test_waiting_tasks_leave_the_executor_alone(redis: Redis) -> None:
    """Fifty waiters don't keep anybody else from the loop's threads."""
    async with redis_lock("job"):

        async def wait() -> bool:
            return await redis_lock("job").aacquire(wait=PATIENCE) is not None

        waiters = [asyncio.create_task(wait()) for _ in range(50)]
        while redis.zcard(QUEUE) < 50:
            await asyncio.sleep(0.002)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 42), PATIENCE) == 42
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    assert unlocked(redis)


async def test_threads_and_tasks_hand_it_to_each_other(redis: Redis) -> None:
    """They are neighbours: each tells the next one, across threads and loops."""
    order: list[str] = []

    def in_a_thread(name: str) -> None:
        with redis_lock("job", wait=PATIENCE):
            order.append(name)

    async def in_a_task(name: str) -> None:
        async with redis_lock("job", wait=PATIENCE):
            order.append(name)

    work: list[Awaitable[None]] = []
    async with redis_lock("job"):
        for number in range(6):
            name = str(number)
            one = in_a_task(name) if number % 2 else asyncio.to_thread(in_a_thread, name)
            work.append(asyncio.ensure_future(one))
            while redis.zcard(QUEUE) <= number:
                await asyncio.sleep(0.005)
    await asyncio.gather(*work)
    assert order == list("012345")
    assert unlocked(redis)
