"""The programs that the tests run as processes of their own: `python -m tests.worker NAME …`.

`NAME` is a function below, or "module:function" for what belongs to one test module only.

They talk in lines: what they say is an event for the test, a line on their standard input is
one for them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any


def say(*words: object) -> None:
    # In one write, since a forked child may say something at the same time.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def told() -> str:
    """Wait for a line from the test."""
    return sys.stdin.readline().strip()


def hold(ttl: str, kind: str = "mutex") -> None:
    """Wait for a lock of that kind without limit, and hold it until told to go on."""
    from django_redislock import LeaseLost, ReadWriteLock, Semaphore, TimestampLock, redis_lock

    policy: dict[str, Any] = {"ttl": float(ttl), "wait": None}
    lock = {
        "mutex": lambda: redis_lock("job", **policy),
        "semaphore": lambda: Semaphore("job", 2, **policy),
        "read": lambda: ReadWriteLock("job", **policy).read(),
        "write": lambda: ReadWriteLock("job", **policy).write(),
        "timestamp": lambda: TimestampLock("lock.import", **policy),
        "migration": lambda: redis_lock("import", timestamp_key="lock.import", **policy),
    }[kind]()
    try:
        with lock as lease:
            say("holding", 0 if kind == "timestamp" else lease.fencing_token)
            told()
    except LeaseLost:
        say("lost")
    else:
        say("released")


def wait(ttl: str = "30", kind: str = "mutex") -> None:
    """The same, of which the test is told when it begins to wait."""
    say("waiting")
    hold(ttl, kind)


def gevent() -> None:
    """Twenty greenlets of a monkey-patched process take turns, and don't stop the others."""
    import gevent

    from django_redislock import redis_lock

    inside = 0
    ticks = 0
    done = False

    def section() -> None:
        nonlocal inside
        with redis_lock("job", wait=None, ttl=0.5):
            inside += 1
            assert inside == 1
            gevent.sleep(0.02)
            inside -= 1

    def tick() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            gevent.sleep(0.001)

    clock = gevent.spawn(tick)
    gevent.joinall([gevent.spawn(section) for _ in range(20)], raise_error=True)
    done = True
    clock.join()
    say("ticks", ticks)


def refused(kind: str) -> None:
    """What a first lock raises."""
    from django_redislock import redis_lock

    async def use() -> None:
        async with redis_lock("job"):
            say("held")

    try:
        if kind == "trio":
            import trio

            trio.run(use)
        else:
            with redis_lock("job"):
                say("held")
    except Exception as error:
        say(type(error).__name__, error)


def careless() -> None:
    """End an event loop without shutdown_asyncgens, then use another one."""
    import asyncio
    import gc
    import warnings

    from django_redislock import redis_lock
    from django_redislock.lease.watchdog import watchdog
    from django_redislock.transport.server import server_of
    from tests.lines import opened

    warnings.simplefilter("ignore", ResourceWarning)
    # The test counts connections: no sign of life, which has one of its own.
    watchdog(server_of("default"))._show_at = float("inf")

    async def use() -> None:
        async with redis_lock("job"):
            pass

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    say("loops", len(opened()))
    told()
    asyncio.run(use())
    del loop
    gc.collect()
    say("loops", len(opened()))
    told()


def roll_back() -> None:
    """End right after a rollback on which a lock depended."""
    from django.db import transaction

    from django_redislock import redis_lock

    try:
        with transaction.atomic():
            with redis_lock("job", ttl=600, release="commit") as lease:
                pass
            say(lease.state)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


if __name__ == "__main__":
    # A process that was started in the background of a shell ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "gevent":
        from gevent import monkey

        monkey.patch_all()
    if sys.argv[2:] == ["eventlet"]:
        import eventlet

        eventlet.monkey_patch()
    import django

    django.setup()
    module, colon, name = sys.argv[1].rpartition(":")
    program = getattr(importlib.import_module(module), name) if colon else globals()[name]
    program(*sys.argv[2:])
