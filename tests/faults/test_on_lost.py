"""Callbacks of a lost lease that do what they should not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, LeaseState, redis_lock
from django_redislock.signals import LockEvent, lock_lost
from django_redislock.transport import connections
from tests.faults.proxy import Fault, Proxy, script
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


@pytest.mark.parametrize("renew", [False, True])
def test_at_the_deadline(
    proxy: Proxy, redis: Redis, monkeypatch: pytest.MonkeyPatch, renew: bool
) -> None:
    """A lease is lost by the clock of its holder. It is told then, although the process waits for
    the answer to a request."""
    monkeypatch.setattr(connections, "BACKGROUND_TIMEOUT", PATIENCE)
    monkeypatch.setitem(connections._BACKGROUND, "socket_timeout", PATIENCE)
    told: queue.SimpleQueue[Lease | LockEvent] = queue.SimpleQueue()
    held = proxy.on(script("mutex_release"), Fault.HOLD_REQUEST)

    def receive(event: LockEvent, **_: object) -> None:
        told.put(event)

    lock_lost.connect(receive)
    try:
        lease = redis_lock("job", ttl=2, renew=renew, on_lost=told.put).acquire()
        assert lease is not None
        other = redis_lock("another").acquire()
        assert other is not None
        other._abandon()  # in the background
        held.happened()
        assert {type(told.get(timeout=PATIENCE / 2)) for _ in range(2)} == {Lease, LockEvent}
        assert lease.state == LeaseState.LOST
        assert redis.exists("redislock:{another}")
    finally:
        lock_lost.disconnect(receive)
        held.let_go()
