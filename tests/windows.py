"""A Python that lacks what it lacks on Windows: `python -m tests.windows PROGRAM …`.

It is a simulation. The calls that are there behave as on this system, and event loops use
`select.select`, which those of Windows do only if they are told to.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
import sys
import time
from typing import Any

MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "register_at_fork", "killpg", "getpgrp", "getuid", "geteuid"),
        *("tcgetpgrp", "O_NOCTTY", "waitid", "uname", "sysconf", "setsid", "getloadavg"),
    ),
    select: ("poll", "epoll", *(name for name in dir(select) if name.startswith(("POLL", "EP")))),
    signal: (
        *("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGCONT", "SIGKILL", "SIGSTOP"),
        *("SIGALRM", "SIGPIPE", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "pthread_sigmask"),
        *("setitimer", "sigwait", "sigpending", "alarm", "pause"),
    ),
    time: ("clock_gettime", *(name for name in dir(time) if name.startswith("CLOCK_"))),
}
MODULES = ("fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "curses", "readline")


def simulate() -> None:
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]


def modules() -> None:
    """Import all of the package, but for the task queues: they ask for the platform themselves."""
    import importlib
    import pkgutil

    import django_redislock

    for found in pkgutil.walk_packages(django_redislock.__path__, "django_redislock."):
        if not found.name.endswith((".tasks.celery", ".tasks.dramatiq", ".tasks.rq")):
            importlib.import_module(found.name)


def locks(*urls: str) -> None:
    """Locks of all kinds exclude, wait, are renewed and released."""
    import threading

    from django.test import override_settings

    from django_redislock import (
        MultiLock,
        ReadWriteLock,
        Redlock,
        Semaphore,
        TimestampLock,
        once,
        redis_lock,
    )
    from tests.caches import entry

    every = [
        redis_lock("job", wait=None, ttl=0.6),
        Semaphore("places", 1, wait=None),
        ReadWriteLock("book", wait=None).write(),
        MultiLock(["a", "b"], wait=None),
        TimestampLock("windows", wait=None),
        Redlock("each", using=["1", "2", "3"], wait=None),
    ]
    seen: list[Any] = []

    def section(lock: Any) -> None:
        for _ in range(3):
            with lock as lease:
                seen.append(lease)
                lease.check()

    aliases = zip(["default", "1", "2", "3"], urls, strict=True)
    with override_settings(CACHES={alias: entry(url) for alias, url in aliases}):
        for lock in every:
            threads = [threading.Thread(target=section, args=[lock]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with every[0] as lease:
            time.sleep(1.2)
            lease.check()
        with once("work") as first:
            assert first

        async def task(lock: Any) -> None:
            async with lock as lease:
                seen.append(lease)
                lease.check()

        async def tasks() -> None:
            await asyncio.gather(*(task(lock) for lock in every for _ in range(4)))

        asyncio.run(tasks())
    print(len(seen), "sections", flush=True)


if __name__ == "__main__":
    simulate()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.core.management import execute_from_command_line

    django.setup()
    program = {"modules": modules, "locks": locks}.get(sys.argv[1])
    if program is None:
        execute_from_command_line(["manage.py", *sys.argv[1:]])
    else:
        program(*sys.argv[2:])
