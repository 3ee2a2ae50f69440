"""What `django_redislock` does when a process starts: nothing that anybody would notice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from devtools.redis_server import RedisServer

PROGRAM = """
import sys, threading
from django.conf import settings
cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}
settings.configure(CACHES={"default": cache}, INSTALLED_APPS=["django_redislock"])
import django
django.setup()
print([name for name in sys.modules if name.startswith(tuple(sys.argv[2:]))])
from django.core.checks import run_checks
run_checks()
from django_redislock import MultiLock, ReadWriteLock, Semaphore, once, redis_lock
redis_lock("name"), Semaphore("places", 3), ReadWriteLock("book"), MultiLock(["a", "b"])
redis_lock("sync:{shop}")(lambda shop: None)
once("a payment")
print([thread.name for thread in threading.enumerate()])
"""

WITHOUT = """
import asyncio, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "django_redis":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from django.conf import settings
cache = {"BACKEND": sys.argv[2], "LOCATION": sys.argv[1], "OPTIONS": {"socket_timeout": 5}}
settings.configure(CACHES={"default": cache}, INSTALLED_APPS=["django_redislock"])
import django
django.setup()
from django.core.cache import cache
from django.core.management import call_command
from redis import Redis
from django_redislock import LockNotAcquired, redis_lock
from django_redislock.client import Lock
call_command("check")

async def task():
    async with redis_lock("job", wait=0):
        pass

with redis_lock("job"):
    call_command("redislock", "list", "--json")
    try:
        asyncio.run(task())
    except LockNotAcquired:
        print("excluded")
asyncio.run(task())
with Redis.from_url(sys.argv[1]) as client, client.lock("key", lock_class=Lock):
    print(Lock(client, "key").locked())
if hasattr(cache, "lock"):
    with cache.lock("key") as lock:
        print(lock.owned())
"""
"""Locks, where django-redis is not installed."""

LATER = [
    *(f"django_redislock.{room}" for room in ("admin", "inspection", "management", "periodic")),
    *(f"django_redislock.{room}" for room in ("contrib", "testing", "views")),
    *(f"django_redislock.doctor.{room}" for room in ("caches", "finding", "server", "settings")),
]
"""What a process that only locks does not import."""


def printed(program: str, *arguments: str) -> str:
    """Run a program in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_connection_and_no_thread() -> None:
    """Imported, set up, checked, and with locks of all kinds that nobody has taken yet. What looks
    at locks is imported by those who look, and the doctor by the checks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        said = printed(PROGRAM, url, *LATER)
        assert said.split("\n") == ["[]", "['MainThread']", ""]
        with pytest.raises(BlockingIOError):
            listener.accept()


DJANGO = "django.core.cache.backends.redis.RedisCache"
OURS = "django_redislock.cache.RedisCache"


@pytest.mark.parametrize(("backend", "says"), [(DJANGO, ["True"]), (OURS, ["True", "True"])])
def test_without_django_redis(backend: str, says: list[str], redis_server: RedisServer) -> None:
    """An entry of Django's own backend needs it for nothing."""
    said = printed(WITHOUT, redis_server.url, backend)
    assert said.splitlines()[-len(says) - 1 :] == ["excluded", *says]
