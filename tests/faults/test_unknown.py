"""A lease whose renewal got no answer: it is unknown, and its holder is told before it is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseState, redis_lock
from django_redislock.signals import LockEvent, lock_lost, lock_unknown
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The events of leases, in order."""
    seen: list[str] = []

    def receive(event: LockEvent, **_: Any) -> None:
        seen.append(event.outcome)

    lock_unknown.connect(receive)
    lock_lost.connect(receive)
    yield seen
    lock_unknown.disconnect(receive)
    lock_lost.disconnect(receive)


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_before_it_is_lost(how: str, own_server: RedisServer, told: list[str]) -> None:
    """Callbacks and receivers are called once per spell, while the lease still has time left."""
    calls: list[LeaseState] = []
    called = threading.Event()

    def callback(lease: Lease) -> None:
        calls.append(lease.state)
        called.set()

    lease = redis_lock("job", ttl=3).acquire(wait=0)
    assert lease is not None
    lease.on_unknown(callback)
    if how == "hangs":
        own_server.pause()
    else:
        own_server.stop()
    try:
        assert called.wait(PATIENCE)
        assert calls == [LeaseState.UNKNOWN]
        eventually(lambda: told == ["unknown"])
        eventually(lambda: lease.state == LeaseState.LOST)
        eventually(lambda: told == ["unknown", "lost"])
        assert calls == [LeaseState.UNKNOWN]
    finally:
        if how == "hangs":
            own_server.resume()


def test_each_spell(own_server: RedisServer, told: list[str]) -> None:
    """After a renewal that succeeded, the next silence is told again. A callback that is added
    meanwhile is called at once."""
    lease = redis_lock("job", ttl=6).acquire(wait=0)
    assert lease is not None
    late = threading.Event()
    for number in (1, 2):
        own_server.pause()
        try:
            eventually(lambda number=number: told == ["unknown"] * number)
            if number == 1:
                lease.on_unknown(lambda _: late.set())
                assert late.wait(PATIENCE)
        finally:
            own_server.resume()
        eventually(lambda: lease.state == LeaseState.HELD)
    lease.release()
    assert "lost" not in told


@pytest.mark.parametrize("error", [Exception, OSError, TimeoutError, SystemExit])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises(error: type[BaseException], own_server: RedisServer) -> None:
    """It harms neither the lease nor the other callbacks."""

    def raises(_: Lease) -> None:
        raise error("from on_unknown")

    called = threading.Event()
    lease = redis_lock("job", ttl=6).acquire(wait=0)
    assert lease is not None
    lease.on_unknown(raises)
    lease.on_unknown(lambda _: called.set())
    own_server.pause()
    try:
        assert called.wait(PATIENCE)
    finally:
        own_server.resume()
    eventually(lambda: lease.state == LeaseState.HELD)
    lease.release()


def test_not_a_function() -> None:
    lease = redis_lock("job").acquire(wait=0)
    assert lease is not None
    with pytest.raises(TypeError, match="on_unknown must be a function"):
        lease.on_unknown("alert")  # type: ignore[arg-type]
    lease.release()
