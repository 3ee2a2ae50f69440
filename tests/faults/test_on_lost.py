"""Callbacks of a lost lease that do what they should not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, redis_lock
from tests.faults.remains import remains
from tests.waiting import PATIENCE, eventually

# What is said of a thread that ends with SystemExit: Python itself says nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

over = threading.Event()


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    over.clear()
    yield
    over.set()


def raises(lease: Lease) -> None:
    raise RuntimeError("an error in on_lost")


def exits(lease: Lease) -> None:
    raise SystemExit


def hangs(lease: Lease) -> None:
    over.wait(PATIENCE)


def releases(lease: Lease) -> None:
    lease.release()


@pytest.mark.parametrize("callback", [raises, exits, hangs, releases])
def test_a_callback_harms_nobody(redis: Redis, callback: Callable[[Lease], None]) -> None:
    """Whatever it does: the other callbacks are called, the holder is told, the successor keeps
    its lease, and those of others are renewed."""
    told = threading.Event()
    with redis_lock("another", ttl=1.5) as another:
        with pytest.raises(LeaseLost):
            with redis_lock("job", ttl=1, on_lost=callback) as lease:
                lease.on_lost(lambda lease: told.set())
                redis_lock("job").clear(reason="a test")
                successor = threading.Thread(target=next_one)
                successor.start()
                assert told.wait(PATIENCE)
                with pytest.raises(LeaseLost):
                    lease.check()
        successor.join(PATIENCE)
        before = redis.pexpiretime("redislock:{another}")
        eventually(lambda: redis.pexpiretime("redislock:{another}") > before)
        another.check()
    assert not remains(redis)
    assert not remains(redis, "another")


def next_one() -> None:
    with redis_lock("job", wait=PATIENCE) as lease:
        lease.check()
