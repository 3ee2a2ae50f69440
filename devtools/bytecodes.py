"""What a free lock costs in bytecodes: `python -m devtools.bytecodes REDIS_URL` counts each form.

The executed bytecodes of a cycle are exact, take milliseconds to count, and are the same on a busy
machine, where a time says nothing. Above 3,000, the time of a cycle divided by that of two plain
commands was 0.6 + 0.0002 × bytecodes (Python 3.11, redis-py 8.1, hiredis, one core).
`tests/test_bytecodes.py` holds the limits.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

WARM_UP = 60
CYCLES = 10


class Cost(NamedTuple):
    """The cost of one cycle in a warm process."""

    bytecodes: int
    calls: int
    """Calls of Python functions."""
    files: int
    """Files of the package that were entered."""


def cost(cycle: Callable[[int], object], number: int) -> Cost:
    """Return what one call of `cycle` costs in this thread."""
    bytecodes = calls = 0
    files: set[str] = set()

    def local(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG001
        nonlocal bytecodes
        bytecodes += event == "opcode"
        return local

    def called(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG001
        nonlocal calls
        calls += 1
        if "django_redislock" in (file := frame.f_code.co_filename):
            files.add(file)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    sys.settrace(called)
    try:
        cycle(number)
    finally:
        sys.settrace(None)
    return Cost(bytecodes, calls, len(files))


def costs(url: str) -> dict[str, Cost]:
    """Return the cost of each form at a server. Sets up Django."""
    forms = _forms(url)
    found = {form: _least(cycle, 0) for form, cycle in forms.items()}
    listen()
    return found | {f"{form}, listening": _least(forms[form], 2000) for form in ("with", "task")}


def _least(cycle: Callable[[int], object], first: int) -> Cost:
    for number in range(WARM_UP):
        cycle(first + number)
    seen = [cost(cycle, first + 1000 + number) for number in range(CYCLES)]
    # Python 3.12 sees nothing in the first cycle, and a new tenth needs more random numbers.
    return min(one for one in seen if one.bytecodes)


def listen() -> None:
    """Let this process listen to messages, as each does that has held a lease for a second."""
    from django_redislock import redis_lock
    from django_redislock.transport.inbox import Inbox
    from django_redislock.transport.server import every

    until = time.monotonic() + 30
    with redis_lock("listening"):
        while not any(box.listening.is_set() for box in every(Inbox)):
            assert time.monotonic() < until
            time.sleep(0.01)


def _forms(url: str) -> dict[str, Callable[[int], object]]:
    import django
    from django.conf import settings

    client = {"CLIENT_CLASS": "django_redislock.client.LockingClient"}
    backend = "django_redis.cache.RedisCache"
    settings.configure(
        CACHES={
            "default": {"BACKEND": backend, "LOCATION": url},
            "locking": {"BACKEND": backend, "LOCATION": url, "OPTIONS": client},
        },
        INSTALLED_APPS=["django_redislock"],
        SECRET_KEY="bytecodes",
        USE_TZ=True,
    )
    django.setup()
    from django.core.cache import caches
    from django.http import HttpResponse
    from django.test import RequestFactory
    from django_redis import get_redis_connection

    from django_redislock import (
        MultiLock,
        ReadWriteLock,
        Semaphore,
        once,
        redis_lock,
        single_flight,
    )
    from django_redislock.views import lock_view

    redis = get_redis_connection("default")
    release = redis.register_script(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
    )
    locking: Any = caches["locking"]
    request = RequestFactory().post("/")
    loop = asyncio.new_event_loop()
    run = secrets.token_hex(4)  # what `once` has done is remembered at the server

    def plain(n: int) -> None:
        redis.set(f"plain:{n}", "token", nx=True, px=30000)
        release(keys=[f"plain:{n}"], args=["token"])

    def block(lock: Callable[[int], Any]) -> Callable[[int], None]:
        def cycle(n: int) -> None:
            with lock(n):
                pass

        return cycle

    async def task(n: int) -> None:
        async with redis_lock(f"task:{n}"):
            pass

    def decorated(n: int) -> None: ...

    @lock_view("view:{n}")
    def view(request: Any, n: int) -> HttpResponse:  # noqa: ARG001
        return HttpResponse()

    return {
        "two plain commands": plain,
        "redis-py's Lock": block(lambda n: redis.lock(f"theirs:{n}", timeout=30)),
        "with": block(lambda n: redis_lock(f"with:{n}")),
        "with arguments": block(lambda n: redis_lock(f"arguments:{n}", ttl=60, wait=1)),
        "decorated": redis_lock("decorated:{n}")(decorated),
        "drop-in": block(lambda n: locking.lock(f"drop:{n}", timeout=30)),
        "Semaphore": block(lambda n: Semaphore(f"semaphore:{n}", 3)),
        "read": block(lambda n: ReadWriteLock(f"rw:{n}").read()),
        "MultiLock of 2": block(lambda n: MultiLock([f"one:{n}", f"two:{n}"])),
        "once": block(lambda n: once(f"once:{run}:{n}")),
        "single_flight": single_flight(f"flight:{run}:{{n}}")(lambda n: n),
        "lock_view": lambda n: view(request, n),
        "task": lambda n: loop.run_until_complete(task(n)),
    }


def main() -> None:
    """Print the costs; with `--json`, for a program."""
    found = costs(sys.argv[1])
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for form, (bytecodes, calls, files) in found.items():
        print(f"{form:18} {bytecodes:6,} bytecodes {calls:4} calls {files:3} files")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
