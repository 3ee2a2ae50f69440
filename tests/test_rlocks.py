"""Locks of threads that an exception from outside can't leave locked."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_redislock.base.process import ONCE, rlock


class Alarm(BaseException):
    """What the handler of the signal raises."""


def sound(number: int, frame: Any) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, sound)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def used_by_with(lock: Any) -> None:
    while True:
        with lock:
            pass


def used_by_steps(lock: Any) -> None:
    """As locks of redis-py are used, which we don't make."""
    while True:
        locked: list[bool] = []
        try:
            locked += map(lock.acquire, ONCE)
        finally:
            if locked:
                lock.release()


def is_free(lock: Any) -> bool:
    """Whether another thread can have it."""
    found = []

    def look() -> None:
        found.append(lock.acquire(blocking=False))
        if found == [True]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found == [True]


@pytest.mark.parametrize(("make", "use"), [(rlock, used_by_with), (threading.Lock, used_by_steps)])
def test_an_alarm(make: Any, use: Any) -> None:
    """Wherever it comes, the lock is free afterwards. CPython 3.14 leaves two of three locks
    locked that are used by `with` all the time."""
    lock = make()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            use(lock)
        except Alarm:
            pass
        assert is_free(lock)


def test_reentrant() -> None:
    """One thread may lock it again."""
    lock = rlock()
    with lock, lock:
        assert not is_free(lock)
    assert is_free(lock)
