"""Development without Redis: `USING = ":memory:"`, in one process and with DEBUG."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_redislock import LockNotAcquired, Semaphore, redis_lock
from django_redislock.inspection import Inspector
from django_redislock.transport import connections, server
from tests.operations.calling import call
from tests.waiting import PATIENCE, eventually

pytest.importorskip("fakeredis")


@pytest.fixture(autouse=True)
def _development(settings: Any) -> Iterator[None]:
    """The settings of a project without Redis."""
    settings.DEBUG = True
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    settings.REDISLOCK = {"USING": ":memory:"}
    _forget()
    yield
    _forget()


def _forget() -> None:
    """Begin with a server of its own, and with nothing that was kept for an earlier one: its
    watchdog would write into that."""
    connections.forget_memory()
    server._kept.get("memory::memory:", {}).clear()


def test_threads_and_tasks_exclude_each_other() -> None:
    """A waiting thread gets the lock next; a task is refused meanwhile."""

    async def task() -> None:
        async with redis_lock("job", wait=0):
            pass

    with redis_lock("job") as first:
        waiter = threading.Thread(target=waits)
        waiter.start()
        eventually(lambda: len(Inspector(":memory:").waiters("job")) == 1)
        with pytest.raises(LockNotAcquired):
            asyncio.run(task())
    waiter.join(PATIENCE)
    assert got[-1] > first.fencing_token
    asyncio.run(task())
    with Semaphore("exports", 2), Semaphore("exports", 2):
        assert call("list").out.count("exports") == 1


got: list[int] = []


def waits() -> None:
    with redis_lock("job", wait=PATIENCE) as lease:
        got.append(lease.fencing_token)


def test_a_child_has_its_own() -> None:
    """A forked child begins with no locks, even if a thread was in the middle of a command."""
    busy, over = threading.Event(), threading.Event()

    def work() -> None:
        while not over.is_set():
            with redis_lock("busy"):
                busy.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    busy.wait(PATIENCE)
    try:
        with redis_lock("job"):
            for _ in range(10):
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        with redis_lock("job", wait=0):
                            code = 0
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)


def test_settings_for_production(settings: Any) -> None:
    """Settings that need a server hinder nobody: the memory has no replicas, and loses nothing."""
    settings.REDISLOCK = {"USING": ":memory:", "REPLICAS": 2, "AFTER_LOSS": "wait"}
    for _ in range(2):
        with redis_lock("job", wait=0):
            pass


def test_debug_is_off(settings: Any) -> None:
    """It is refused, at the start and at the first lock, and what to write is said."""
    with redis_lock("job"):
        pass
    settings.DEBUG = False
    settings.CACHES = {**settings.CACHES}  # as a process that starts with these settings
    with pytest.raises(
        ImproperlyConfigured, match=r"':memory:', and DEBUG is off.* alias of CACHES"
    ):
        redis_lock("job").acquire()
    (error,) = run_checks(tags=["redislock"])
    assert error.id == "redislock.E002"
    assert "LOCATION" in (error.hint or "")
    assert call("list").code == 78


def test_without_fakeredis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redislock.transport.connections.find_spec", lambda name: None)
    with pytest.raises(ImproperlyConfigured, match=r'pip install "django-redislock\[testing\]"'):
        redis_lock("job").acquire()


def test_a_command_sees_only_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It says so on stderr, and the doctor says what to write for production."""
    with redis_lock("job"):
        assert "job" in call("list").out
    assert "each process has locks of its own" in capsys.readouterr().err
    out = call("doctor").out
    assert "redislock.W009" in out
    assert 'REDISLOCK |= {"USING": "default"}' in out
    assert run_checks(tags=["redislock"]) == []
