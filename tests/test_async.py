"""Event loops, their connections, and cancellation at every await."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from redis import Redis

from django_redislock import current_lease, redis_lock
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.event_loops import opened
from django_redislock.transport.server import server_of
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


def test_more_tasks_than_connections(redis: Redis) -> None:
    """Tasks that find all connections in use wait for one; none of them fails."""
    caches = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ["REDISLOCK_TEST_URL"],
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 3}},
        }
    }

    async def use(number: int) -> None:
        async with redis_lock(f"job:{number}"):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(use(number) for number in range(100)))
        (shared,) = opened()
        assert shared.pool.max_connections == 3

    with override_settings(CACHES=caches):
        asyncio.run(main())


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


async def cancelled_at(
    steps: int, make: Callable[[], Awaitable[Any]]
) -> tuple[bool, asyncio.Task[Any]]:
    """Run a task for so many turns of the loop, then cancel it. False: it had ended before."""

    async def run() -> Any:
        return await make()

    task = asyncio.create_task(run())
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            return False, task
    task.cancel()
    await asyncio.wait([task])
    return True, task


@pytest.mark.parametrize("cold", [True, False], ids=["connecting", "connected"])
def test_a_cancelled_acquire_leaves_no_key(redis: Redis, cold: bool) -> None:
    """Cancelled after each turn of the event loop that it takes, one by one."""

    async def main() -> int:
        if not cold:
            async with redis_lock("warm up"):
                pass
        for steps in range(1, 200):
            cut, task = await cancelled_at(steps, redis_lock("job").aacquire)
            if not cut:
                await task.result().arelease()
                return steps
            assert task.cancelled()
            assert unlocked(redis), f"cancelled after {steps} turns"
            if cold:
                for shared in opened():
                    await shared.pool.disconnect()
        raise AssertionError("never got to the end")

    assert asyncio.run(main()) > 2


async def test_an_acquire_that_is_cancelled_twice(redis: Redis) -> None:
    """The second time while it takes back what it has done: that goes on to its end."""
    async with redis_lock("warm up"):
        pass
    for second in range(6):
        task = asyncio.create_task(redis_lock("job").aacquire())
        while not redis.exists(KEY):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(second):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():  # it had been too late
            await task.result().arelease()
        async with asyncio.timeout(PATIENCE):
            while not unlocked(redis):
                await asyncio.sleep(0)


def test_a_cancelled_release_releases(redis: Redis) -> None:
    """A task that is cancelled while it leaves its block has left it."""

    async def main() -> int:
        async with redis_lock("warm up"):
            pass
        for steps in range(1, 200):
            lease = await redis_lock("job").aacquire()
            cut, _ = await cancelled_at(steps, lease.arelease)
            if not cut:
                assert unlocked(redis)
                return steps
            if steps > 1:  # else it had not begun to run
                assert unlocked(redis), f"cancelled after {steps} turns"
            await lease.arelease()
        raise AssertionError("never got to the end")

    assert asyncio.run(main()) > 1


async def test_a_cancelled_waiter_leaves_the_queue(redis: Redis) -> None:
    """Cancelled at any moment of its wait, also while it is handed the lock."""
    for turns in range(12):
        lease = await redis_lock("job").aacquire()
        waiter = asyncio.create_task(redis_lock("job").aacquire(wait=PATIENCE))
        while not redis.zcard(QUEUE):
            await asyncio.sleep(0.001)
        await lease.arelease()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        if not waiter.cancelled():
            await waiter.result().arelease()
        assert unlocked(redis), f"cancelled {turns} turns after the handover"


async def test_a_timeout_around_a_wait(redis: Redis) -> None:
    """asyncio.timeout() works as everywhere, and leaves nothing behind."""
    async with redis_lock("job"):

        async def wait() -> None:
            async with asyncio.timeout(0.1):
                await redis_lock("job").aacquire(wait=None)

        with pytest.raises(TimeoutError):
            await asyncio.create_task(wait())
        assert not redis.exists(QUEUE)


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


def test_a_loop_that_is_closed_with_a_lease_held(redis: Redis) -> None:
    """Nothing hangs, and the lease can be released from elsewhere."""

    async def main() -> Any:
        return await redis_lock("job").aacquire()

    lease = asyncio.run(main())
    lease.check()
    lease.release()
    assert unlocked(redis)
