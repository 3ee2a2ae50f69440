"""An application that takes locks when it is loaded, which with `--preload` is in the master."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import django

django.setup()

from django_redis import get_redis_connection  # noqa: E402

from django_redislock import redis_lock  # noqa: E402
from django_redislock.base import tokens  # noqa: E402
from django_redislock.transport.inbox import Inbox  # noqa: E402
from django_redislock.transport.server import server_of  # noqa: E402

redis = get_redis_connection("default")

# What a process starts once: the watchdog and the inbox. They are quiet when we return: uWSGI
# forks without asking the interpreter, and a thread that runs just then would keep it for ever.
# The inbox comes first, since it goes on for a moment after it has subscribed.
box = server_of("default").kept(Inbox, "redislock")
box.start()
box.listening.wait(20)
loaded = redis_lock("loaded", ttl=float(os.environ.get("LOADED_TTL", "20"))).acquire(wait=0)
while loaded is not None and not redis.exists(f"redislock:process:{tokens.process}"):
    time.sleep(0.01)


def _count() -> str:
    """Nobody counts at the same time, or some would be missing."""
    counted = int(redis.get("counted") or 0)
    redis.set("counted", counted + 1)
    return f"{os.getpid()}"


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Count under a lock, hold one until the process is killed, or say what a worker knows of the
    lease that was taken when the application was loaded."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"].startswith("/hold/"):
        with redis_lock("held", ttl=float(environ["PATH_INFO"][6:]), wait=0):
            redis.set("holder", os.getpid())
            while True:
                time.sleep(0.05)
    if environ["PATH_INFO"] == "/loaded":
        assert loaded is not None
        taken = redis_lock("loaded").acquire(wait=0) is None
        return [f"{loaded.state} {taken}".encode()]
    with redis_lock("count", ttl=20, wait=20):
        return [_count().encode()]


async def asgi(
    scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
) -> None:
    """The same for coroutines."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        return
    if scope["path"].startswith("/hold/"):
        async with redis_lock("held", ttl=float(scope["path"][6:]), wait=0):
            redis.set("holder", os.getpid())
            await asyncio.sleep(1000)
    async with redis_lock("count", ttl=20, wait=20):
        body = _count().encode()
    start = {"type": "http.response.start", "status": 200, "headers": []}
    await send(start)
    await send({"type": "http.response.body", "body": body})
