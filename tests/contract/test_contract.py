"""What every kind of lock owes, sync and async, on a real Redis.

Each test runs for each kind in `KINDS`. What only one kind owes is in the file of that kind.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockNotAcquired,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    redis_lock,
    signals,
)
from django_redislock.lease.lock import Lock
from django_redislock.signals import LockEvent
from tests.contract.api import Api, Meanwhile, elsewhere, queued
from tests.waiting import PATIENCE, eventually

OLD = "lock.contract"
"""The key of the timestamp locks."""


@dataclass(frozen=True)
class Kind:
    """A kind of lock: `make` makes the one that the tests hold."""

    make: Callable[..., Lock]
    rival: Callable[..., Lock] = None  # type: ignore[assignment]
    """Makes a lock that can't be held at the same time; by default `make`."""
    names: tuple[str, ...] = ("contract",)
    """Where a conflict and a clear are seen."""
    clear: Callable[..., Lock] = None  # type: ignore[assignment]
    """Makes the lock that an operator clears; by default `make`."""
    fencing: bool = True
    queue: bool = True
    """Whether waiters stand in a queue in Redis."""
    exports: bool = True
    permits: bool = False
    """Whether several may hold it, so that nobody is named as the successor."""

    def other(self, **options: Any) -> Lock:
        return (self.rival or self.make)(**options)

    def cleared(self, **options: Any) -> Lock:
        return (self.clear or self.make)(**options)


def mutex(**options: Any) -> Lock:
    return redis_lock("contract", **options)


def read(**options: Any) -> Lock:
    return ReadWriteLock("contract", **options).read()


def write(**options: Any) -> Lock:
    return ReadWriteLock("contract", **options).write()


KINDS = {
    "mutex": Kind(mutex),
    "semaphore": Kind(lambda **options: Semaphore("contract", 1, **options), permits=True),
    "read": Kind(read, write, permits=True),
    "write": Kind(write, read, permits=True),
    "multi": Kind(
        lambda **options: MultiLock(["contract", "other"], **options),
        names=("contract", "other"),
        clear=mutex,
        fencing=False,
        exports=False,
    ),
    "timestamp": Kind(
        lambda **options: TimestampLock(OLD, **options), names=(OLD,), fencing=False, queue=False
    ),
    "mutex and timestamp": Kind(
        lambda **options: redis_lock("contract", timestamp_key=OLD, **options)
    ),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest, redis: Redis) -> Kind:
    redis.delete(OLD)
    kind: Kind = request.param
    return kind


def those(wanted: Callable[[Kind], bool]) -> pytest.MarkDecorator:
    """Run a test for some kinds."""
    chosen = {name: kind for name, kind in KINDS.items() if wanted(kind)}
    return pytest.mark.parametrize("kind", chosen.values(), ids=chosen, indirect=True)


LASTING = re.compile(r":clock$|:history$|:index$|:gone:|:missed_wakeups$|:process:")


def keys(redis: Redis) -> set[str]:
    """All keys but what outlives a lock for a while, or is there once for a process."""
    found = {key.decode() for match in ("redislock*", OLD) for key in redis.scan_iter(match=match)}
    return {key for key in found if not LASTING.search(key)}


def test_acquire_and_release(api: Api, kind: Kind, redis: Redis) -> None:
    """A free lock is held at once; a release leaves nothing of it."""
    lease = api.acquire(kind.make(ttl=30))
    assert lease.state == LeaseState.HELD
    assert 28 < lease.remaining() <= 30
    assert keys(redis)
    assert all(redis.pttl(key) > 28_000 for key in keys(redis))
    api.release(lease)
    assert lease.state == LeaseState.RELEASED
    assert not keys(redis)
    assert not [*redis.scan_iter(match="*:history")]
    assert all(redis.zcard(key) == 0 for key in redis.scan_iter(match="redislock*:index"))


def test_it_excludes(api: Api, kind: Kind, redis: Redis) -> None:
    """While somebody holds it, nobody else gets it; afterwards somebody does."""
    lease = api.acquire(kind.make())
    before = {key: redis.dump(key) for key in keys(redis)}
    assert elsewhere(api, kind.other()).result(PATIENCE) is None
    after = {key: redis.dump(key) for key in keys(redis)}
    assert after == before, "an attempt in vain changes nothing"
    lease.check()
    api.release(lease)
    again = elsewhere(api, kind.other()).result(PATIENCE)
    assert elsewhere(api, kind.make()).result(PATIENCE) is None
    api.release(again)
    assert not keys(redis)


def test_a_conflict_says_who(api: Api, kind: Kind) -> None:
    """The error has owner, label, since when, and how long the lease lives, and no token."""
    lease = api.acquire(kind.make(ttl=20, label="shop/views.py:42 in pay"))
    with pytest.raises(LockNotAcquired) as caught:
        api.start(lambda: api.enter(kind.other(wait=0), lambda _: None)).result(PATIENCE)
    error, holder = caught.value, caught.value.holder
    assert error.name in kind.names
    assert (holder.owner, holder.label) == (lease.owner, "shop/views.py:42 in pay")
    assert holder.acquired_at == lease.acquired_at
    assert abs(datetime.now(UTC) - holder.acquired_at) < timedelta(seconds=PATIENCE)
    assert 0 < holder.remaining <= 21
    assert error.waited < PATIENCE
    assert lease.token not in str(error)
    if kind.fencing:
        assert holder.fencing_token == lease.fencing_token
    assert api.holder(kind.make()).owner == lease.owner
    assert api.locked(kind.make())
    api.release(lease)
    assert api.holder(kind.make()) is None
    assert not api.locked(kind.make())


def test_a_waiter_gets_it(api: Api, kind: Kind, redis: Redis) -> None:
    """A waiter holds the lock after the release, for its whole ttl, with a larger fencing
    token."""
    lease = api.acquire(kind.make())
    waiter = elsewhere(api, kind.other(), wait=None)
    if kind.queue:
        queued(redis, "contract")
    api.release(lease)
    if kind.queue:
        assert elsewhere(api, kind.make()).result(PATIENCE) is None, "nobody barges in"
    handed = waiter.result(PATIENCE)
    assert handed.remaining() > 20
    if kind.fencing:
        assert handed.fencing_token > lease.fencing_token
    api.release(handed)
    assert not keys(redis)


@those(lambda kind: kind.queue)
def test_nobody_barges_in_when_a_lease_has_ended(api: Api, kind: Kind, redis: Redis) -> None:
    """While the first waiter has not noticed yet that the lock is free, a newcomer does not get
    it."""
    dead = api.acquire(kind.make(renew=False))
    waiter = elsewhere(api, kind.other(), wait=None)
    queued(redis, "contract")
    redis.delete(*(key for key in keys(redis) if not key.endswith((":queue", ":waiters"))))
    assert elsewhere(api, kind.make()).result(PATIENCE) is None
    lease = waiter.result(PATIENCE)
    assert lease.token != dead.token
    api.release(lease)
    assert not keys(redis)


@those(lambda kind: kind.queue and not kind.rival)
def test_waiters_are_served_in_order_of_arrival(api: Api, kind: Kind, redis: Redis) -> None:
    """First come, first served."""
    order: list[int] = []

    def wait(number: int) -> None:
        lease = api.acquire(kind.make(), wait=None)
        order.append(number)
        api.release(lease)

    lease = api.acquire(kind.make())
    waiters = []
    for number in range(6):
        waiters.append(api.start(lambda number=number: wait(number)))
        queued(redis, "contract", number + 1)
    api.release(lease)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == list(range(6))


def test_giving_up_leaves_nothing(api: Api, kind: Kind, redis: Redis) -> None:
    """When the time to wait is over, the answer is None, and no place in a queue remains."""
    lease = api.acquire(kind.make())
    before = keys(redis)
    assert elsewhere(api, kind.other(), wait=0.1).result(PATIENCE) is None
    assert keys(redis) == before
    api.release(lease)
    assert not keys(redis)


def test_a_waiter_notices_an_expired_holder(api: Api, kind: Kind) -> None:
    """When a holder dies without a word, the waiter has the lock soon after the lease ends."""
    dead = api.acquire(kind.make(ttl=0.3, renew=False))
    lease = elsewhere(api, kind.other(), wait=PATIENCE).result(PATIENCE)
    assert dead.state == LeaseState.LOST
    with pytest.raises(LeaseLost):
        api.release(dead)
    lease.check()
    api.release(lease)


def test_release_may_be_repeated(api: Api, kind: Kind) -> None:
    """The second release does nothing, also if somebody else holds the lock by then."""
    lease = api.acquire(kind.make())
    api.release(lease)
    api.release(lease)
    other = elsewhere(api, kind.other()).result(PATIENCE)
    api.release(lease)
    api.extend(other)
    api.release(other)


@pytest.fixture
def clock() -> str:
    """The key with the last fencing token."""
    return "redislock:clock"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The outcomes of all events."""
    outcomes: list[str] = []

    def observe(event: LockEvent) -> None:
        outcomes.append(event.outcome)

    signals.observe(observe)
    yield outcomes
    signals.unobserve(observe)


Release = Callable[[], Any]


def a_handler(api: Api, lease: Lease, then: Release) -> None:
    """A signal's handler in the thread that is releasing, which can't wait for that thread."""
    lease.release()
    then()


def another(api: Api, lease: Lease, then: Release) -> Any:
    """Another thread or task."""
    return api.start(lambda: (api.release(lease), then()))


AT_ONCE = [
    pytest.mark.parametrize("second", [a_handler, another], ids=lambda it: it.__name__),
    pytest.mark.parametrize("answered", [False, True], ids=["before", "after"]),
]


def at_once(test: Any) -> Any:
    """Run it for each who releases at the same moment: before Redis has carried out the first
    release, and after."""
    for mark in AT_ONCE:
        test = mark(test)
    return test


@at_once
def test_two_releases_at_once(
    api: Api,
    kind: Kind,
    redis: Redis,
    meanwhile: Meanwhile,
    told: list[str],
    second: Any,
    answered: bool,
) -> None:
    """Both have released when they return, and nothing is lost."""
    lease = api.acquire(kind.make())
    free: list[set[str]] = []
    meanwhile(
        lambda: second(api, lease, lambda: free.append(keys(redis))),
        answered=answered,
    )
    api.release(lease)
    eventually(lambda: free == [set()])  # it is free when the second one returns
    assert lease.state == LeaseState.RELEASED
    assert told == ["acquired", "released"]
    assert not keys(redis)


@at_once
def test_a_release_while_its_block_is_left(
    api: Api,
    kind: Kind,
    redis: Redis,
    meanwhile: Meanwhile,
    told: list[str],
    second: Any,
    answered: bool,
) -> None:
    """The block ends well: nothing was lost, so no transaction is rolled back."""

    def body(lease: Lease) -> None:
        meanwhile(lambda: second(api, lease, list), answered=answered)

    api.enter(kind.make(), body)
    assert told == ["acquired", "released"]
    assert not keys(redis)


@at_once
def test_two_releases_at_once_of_a_lost_lease(
    api: Api, kind: Kind, redis: Redis, meanwhile: Meanwhile, second: Any, answered: bool
) -> None:
    """It is said that the lease is lost, and said once to those who listen."""
    lost: list[Lease] = []
    lease = api.acquire(kind.make(renew=False, on_lost=lost.append))
    redis.delete(*keys(redis))
    errors: list[BaseException] = []

    def release(call: Callable[[], Any]) -> None:
        try:
            call()
        except LeaseLost as error:
            errors.append(error)

    def release_too() -> Any:
        if second is a_handler:
            return release(lease.release)
        return api.start(lambda: release(lambda: api.release(lease)))

    meanwhile(release_too, answered=answered)
    release(lambda: api.release(lease))
    assert errors
    assert lease.state == LeaseState.LOST
    eventually(lambda: lost == [lease])


@pytest.mark.parametrize("taken", [False, True])
def test_a_lost_lease(api: Api, kind: Kind, redis: Redis, taken: bool) -> None:
    """Extend and release say that it is lost; they bring nothing back, and leave a successor
    alone."""
    why = "it expired before it was renewed, or its key was deleted"
    if taken and not kind.permits:
        why = "holds the lock now"
    for act in (api.extend, api.release):
        lease = api.acquire(kind.make(renew=False))
        redis.delete(*keys(redis))
        successor = elsewhere(api, kind.other()).result(PATIENCE) if taken else None
        before = keys(redis)
        with pytest.raises(LeaseLost, match=why):
            act(lease)
        assert lease.state == LeaseState.LOST
        assert keys(redis) == before
        if successor is not None:
            api.extend(successor)
            api.release(successor)


def test_extend(api: Api, kind: Kind, redis: Redis) -> None:
    """The lease lives for its ttl from now, or for another ttl that is given."""
    lease = api.acquire(kind.make(ttl=10, renew=False))
    api.extend(lease)
    assert 8 < lease.remaining() <= 10
    api.extend(lease, 60)
    assert lease.ttl == 60
    assert 55 < lease.remaining() <= 60
    assert all(redis.pttl(key) > 55_000 for key in keys(redis))
    api.release(lease)


def test_no_extension_outlasts_max_hold(api: Api, kind: Kind) -> None:
    """An extension is cut at max_hold, whatever ttl is asked for."""
    lease = api.acquire(kind.make(ttl=10, max_hold=20, renew=False))
    api.extend(lease, 60)
    assert 15 < lease.remaining() <= 20
    api.release(lease)


def test_clear(api: Api, kind: Kind) -> None:
    """The holder learns at its next extension who cleared the lock and why; a successor is left
    alone."""
    lease = api.acquire(kind.make(renew=False))
    cleared = api.clear(kind.cleared(), by="eva", reason="host is gone")
    assert cleared.owner == lease.owner
    successor = elsewhere(api, kind.cleared()).result(PATIENCE)
    with pytest.raises(LeaseRevoked, match=r"eva.*host is gone") as caught:
        api.extend(lease)
    assert (caught.value.by, caught.value.reason) == ("eva", "host is gone")
    assert lease.state == LeaseState.LOST
    api.extend(successor)
    api.release(successor)
    assert api.clear(kind.cleared(), reason="nobody") is None


@those(lambda kind: kind.exports)
def test_export_and_restore(api: Api, kind: Kind, redis: Redis) -> None:
    """The first to restore a lease continues it, under a token of its own."""
    lease = api.acquire(kind.make(ttl=20))
    text = lease.export()
    assert lease.state == LeaseState.RELEASED
    api.release(lease)
    assert keys(redis), "the exporter doesn't release it any more"
    restored = api.restore(text)
    assert restored.state == LeaseState.HELD
    assert restored.token != lease.token
    assert (restored.name, restored.label) == (lease.name, lease.label)
    assert restored.acquired_at == lease.acquired_at
    if kind.fencing:
        assert restored.fencing_token == lease.fencing_token
    assert restored._claim.primitive == lease._claim.primitive, "with its limit"
    assert api.holder(kind.make()).owner == restored.owner
    with pytest.raises(LeaseLost):
        api.restore(text)
    api.extend(restored)
    assert elsewhere(api, kind.other()).result(PATIENCE) is None
    api.release(restored)
    with pytest.raises(LeaseLost):
        api.restore(text)
    assert not keys(redis)


def test_a_forgotten_script(api: Api, kind: Kind, redis: Redis) -> None:
    """After SCRIPT FLUSH the scripts are sent again."""
    redis.script_flush()
    lease = api.acquire(kind.make())
    redis.script_flush()
    api.extend(lease)
    redis.script_flush()
    api.release(lease)
    assert not keys(redis)


def test_as_a_decorator(api: Api, kind: Kind, redis: Redis) -> None:
    """It is held while the function runs, and not afterwards."""
    function = kind.make()(api.function(lambda number: (number, bool(keys(redis)))))
    assert api.call(function, 7) == (7, True)
    assert not keys(redis)


@those(lambda kind: kind.fencing)
def test_fencing_tokens_grow(api: Api, kind: Kind, redis: Redis, clock: str) -> None:
    """Also if Redis forgets the last one, and if its clock goes back."""
    tokens = []
    for forget in (False, True, False, True):
        lease = api.acquire(kind.make())
        tokens.append(lease.fencing_token)
        api.release(lease)
        if forget:
            redis.delete(clock)
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 2**53
    ahead = tokens[-1] + 3_600_000_000
    redis.set(clock, ahead)
    for more in (1, 2):
        lease = api.acquire(kind.make())
        assert lease.fencing_token == ahead + more
        api.release(lease)


@those(lambda kind: kind.fencing)
def test_a_renewal_restores_the_last_fencing_token(
    api: Api, kind: Kind, redis: Redis, clock: str
) -> None:
    """If Redis has forgotten it: the next holder has a larger one, also if the clock goes back."""
    lease = api.acquire(kind.make(renew=False))
    redis.delete(clock)
    api.extend(lease)
    assert int(redis.get(clock)) == lease.fencing_token
    api.release(lease)


def test_contention(api: Api, kind: Kind, redis: Redis) -> None:
    """Many that increment an unprotected number, one at a time, lose no increment."""
    inside = threading.Lock()
    number = 0
    tokens: list[int] = []
    lock = kind.make if kind.rival is not read and kind.make is not read else write

    def section(lease: Lease) -> None:
        nonlocal number
        assert inside.acquire(blocking=False), "two inside at once"
        before = number
        if kind.fencing:
            tokens.append(lease.fencing_token)
        number = before + 1
        inside.release()

    def worker() -> None:
        for _ in range(10):
            api.enter(lock(wait=PATIENCE), section)

    for future in [api.start(worker) for _ in range(8)]:
        future.result(2 * PATIENCE)
    assert number == 80
    assert tokens == sorted(set(tokens))
    assert not keys(redis)
