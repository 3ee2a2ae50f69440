"""Every kind of lock when messages are lost, late or repeated.

What only the mutex owes then is in the files test_lost_*.py and test_late.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import Lease, LeaseState, LockUnavailable
from tests.caches import entry
from tests.calling import at_length
from tests.contract.api import Api, extended, queued
from tests.contract.test_contract import KINDS, OLD, Kind, keys, read
from tests.faults.proxy import Fault, Matcher, Proxy, script
from tests.faults.scene import FAULTS, FOR_EVER, PATIENT, RESETS, TIMEOUT
from tests.waiting import PATIENCE, eventually

with_every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS, indirect=True)


class Step(NamedTuple):
    """A kind of lock, and which of its requests are hit: those of the scripts `called`_…"""

    kind: Kind
    called: str

    def hit(self, verb: str) -> Matcher:
        return script(f"{self.called}_{verb}")


STEPS = {
    "mutex": Step(KINDS["mutex"], "mutex"),
    "semaphore": Step(KINDS["semaphore"], "permits"),
    "read": Step(KINDS["read"], "permits"),
    "write": Step(KINDS["write"], "permits"),
    "multi": Step(KINDS["multi"], "mutex"),
    "timestamp": Step(KINDS["timestamp"], "timestamp"),
    "mutex beside a timestamp": Step(KINDS["mutex and timestamp"], "mutex"),
    "timestamp beside a mutex": Step(KINDS["mutex and timestamp"], "timestamp"),
}
WHOLE = {name: step for name, step in STEPS.items() if name != "timestamp beside a mutex"}
"""Those that are released when that request is carried out: of two keys the last one."""
QUEUES = {n: step for n, step in WHOLE.items() if step.kind.queue and step.kind.rival is not read}
"""Those whose waiters stand in a queue, and exclude each other."""


@pytest.fixture(params=STEPS.values(), ids=STEPS)
def step(request: pytest.FixtureRequest) -> Step:
    step: Step = request.param
    return step


@pytest.fixture(autouse=True)
def _short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    if not getattr(request, "param", True):
        if step.called == "timestamp":
            pytest.skip("it has no short request")
        at_length(monkeypatch)


in_both_lengths = pytest.mark.parametrize(
    "_short", [True, False], ids=["short", "at length"], indirect=True
)
"""Locks that are free are acquired and released by short requests, and else by those that come
after them. Of an extension there is one only."""


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """By default the hardest: it was carried out, and nobody can know."""
    fault: Fault = getattr(request, "param", Fault.LOSE_REPLY)
    return fault


@pytest.fixture(autouse=True)
def _around(
    proxy: Proxy, redis: Redis, redis_server: RedisServer, fault: Fault, settings: Any
) -> None:
    """Clients give up on an answer soon if it will never come; "direct" is past the proxy."""
    redis.delete(OLD)
    timeout = PATIENT if fault in RESETS else TIMEOUT
    settings.CACHES = {
        "default": entry(proxy.url, SOCKET_TIMEOUT=timeout),
        "direct": entry(redis_server.url),
    }


@pytest.fixture
def connected(api: Api, step: Step) -> None:
    """A connection is open, so that a time-out hits the first request and not the greeting."""

    def asked() -> bool:
        try:
            api.holder(step.kind.make())
        except LockUnavailable:
            return False
        return True

    eventually(asked)


def past(api: Api, step: Step, wait: float | None = 0) -> Lease | None:
    """Another thread or task, which sees no faults, asks for the lock."""
    lock = step.kind.other(using="direct")
    lease: Lease | None = api.start(lambda: api.acquire(lock, wait=wait)).result(PATIENCE)
    return lease


def release(api: Api, lease: Lease) -> None:
    """Give it back, as often as it takes."""
    for _ in range(3):
        try:
            api.release(lease)
            break
        except LockUnavailable:
            pass
    assert lease.state == LeaseState.RELEASED
    assert lease._lifetime.lost is None


@in_both_lengths
@with_every_fault
def test_a_lost_acquire(api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault) -> None:
    """Asked again with the same token, it holds the lock, once and at each name."""
    rule = proxy.on(step.hit("acquire"), fault)
    lease = api.acquire(step.kind.make(ttl=600), wait=PATIENCE)
    assert rule.count == 1
    assert lease.remaining() > 500
    lease.check()
    assert past(api, step) is None
    release(api, lease)
    eventually(lambda: not keys(redis))


@in_both_lengths
@with_every_fault
@pytest.mark.usefixtures("connected")
def test_an_acquire_that_nobody_heard_of(
    api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault
) -> None:
    """Whoever may not wait is told so; what the server has done is undone."""
    rule = proxy.on(step.hit("acquire"), fault, times=FOR_EVER)
    with pytest.raises(LockUnavailable):
        api.acquire(step.kind.make(ttl=600), wait=0)
    rule.happened()
    rule.let_go()
    eventually(lambda: not keys(redis))


@in_both_lengths
@pytest.mark.parametrize("fault", [Fault.HOLD_REQUEST], indirect=True)
@pytest.mark.usefixtures("connected")
def test_an_acquire_that_arrives_late(
    api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault
) -> None:
    """It was withdrawn, at every name: it is no lock that nobody holds."""
    rule = proxy.on(step.hit("acquire"), fault)
    with pytest.raises(LockUnavailable):
        api.acquire(step.kind.make(ttl=600), wait=0)
    eventually(lambda: len(redis.keys("redislock:*:gone:*")) >= len(step.kind.names))
    rule.let_go()
    eventually(lambda: rule.carried_out == 1)
    eventually(lambda: not keys(redis))


@in_both_lengths
@pytest.mark.parametrize("fault", [Fault.HOLD_REQUEST], indirect=True)
def test_an_acquire_that_arrives_after_an_extension(
    api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault
) -> None:
    """It does not shorten the lease that its holder has extended meanwhile."""
    rule = proxy.on(step.hit("acquire"), fault)
    lease = api.acquire(step.kind.make(ttl=5, renew=False), wait=PATIENCE)
    api.extend(lease, 600)
    rule.let_go()
    eventually(lambda: rule.carried_out == 1)
    assert all(redis.pttl(key) > 500_000 for key in keys(redis))
    release(api, lease)
    eventually(lambda: not keys(redis))


@in_both_lengths
@with_every_fault
def test_a_lost_release(api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault) -> None:
    """It is no loss, and can be repeated."""
    lease = api.acquire(step.kind.make(ttl=600))
    rule = proxy.on(step.hit("release"), fault)
    release(api, lease)
    assert rule.count == 1
    eventually(lambda: not keys(redis))


@in_both_lengths
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.RESET_AFTER], indirect=True)
def test_leaving_a_block(api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault) -> None:
    """The body's exception comes out as it was raised, and soon nothing is held or lost."""
    rule = proxy.on(step.hit("release"), fault, times=2)
    oops = ZeroDivisionError()
    leases: list[Lease] = []

    def body(lease: Lease) -> None:
        leases.append(lease)
        raise oops

    with pytest.raises(ZeroDivisionError) as caught:
        api.enter(step.kind.make(ttl=600), body)
    assert caught.value is oops
    rule.happened()
    eventually(lambda: not keys(redis))
    eventually(lambda: leases[0].state == LeaseState.RELEASED)
    assert leases[0]._lifetime.lost is None


@in_both_lengths
@pytest.mark.parametrize("step", WHOLE.values(), ids=WHOLE)
def test_a_release_that_is_repeated(api: Api, proxy: Proxy, step: Step) -> None:
    """Others have held the lock since: that is no loss, and the last of them keeps it."""
    lease = api.acquire(step.kind.make(ttl=600))
    proxy.on(step.hit("release"), Fault.LOSE_REPLY)
    with pytest.raises(LockUnavailable):
        api.release(lease)
    for _ in range(8):
        other = past(api, step, wait=PATIENCE)
        assert other is not None
        api.release(other)
    other = past(api, step)
    assert other is not None
    release(api, lease)
    api.extend(other)
    api.release(other)


@in_both_lengths
@pytest.mark.parametrize("step", QUEUES.values(), ids=QUEUES)
@with_every_fault
def test_a_lost_release_while_others_wait(
    api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault
) -> None:
    """The first of them has the lock, once; the second has to wait for it."""
    lease = api.acquire(step.kind.make(ttl=600))
    waiters = []
    for number in range(2):
        waiters.append(api.start(lambda: past(api, step, wait=None)))
        queued(redis, "contract", number + 1)
    proxy.on(step.hit("release"), fault)
    release(api, lease)
    successor = waiters[0].result(PATIENCE)
    api.extend(successor)
    assert not waiters[1].done()
    api.release(successor)
    api.release(waiters[1].result(PATIENCE))
    eventually(lambda: not keys(redis))


@with_every_fault
def test_a_lost_extension(api: Api, proxy: Proxy, redis: Redis, step: Step, fault: Fault) -> None:
    """The lease is unknown, and not lost; the next one is in time."""
    lease = api.acquire(step.kind.make(ttl=60, renew=False))
    proxy.on(step.hit("extend"), fault)
    with pytest.raises(LockUnavailable):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN
    lease.check()
    eventually(lambda: extended(api, lease))
    assert lease.state == LeaseState.HELD
    release(api, lease)
    eventually(lambda: not keys(redis))


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY], indirect=True)
def test_all_renewals_are_lost(api: Api, proxy: Proxy, step: Step, fault: Fault) -> None:
    """The lease is lost at its own deadline, before the server gives the lock to anybody else."""
    lease = api.acquire(step.kind.make(ttl=1.5))
    rule = proxy.on(step.hit("extend"), fault, times=FOR_EVER)
    successor = past(api, step, wait=PATIENCE)
    assert successor is not None
    assert lease.state == LeaseState.LOST
    assert rule.count
    api.release(successor)
