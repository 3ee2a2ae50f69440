"""`AFTER_LOSS = "wait"`: after lost data nobody new gets a lock that somebody may hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LeaseLost,
    LeaseState,
    LockUnavailable,
    MultiLock,
    once,
    redis_lock,
)
from django_redislock.lease import lifetime, plan
from django_redislock.lease.lock import Lock
from django_redislock.primitives import mutex
from django_redislock.primitives.contract import run
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import clustered
from django_redislock.views import lock_view
from tests.caches import entry
from tests.contract.api import Api
from tests.faults.proxy import Fault, Rule, script
from tests.faults.scene import EXTEND, FAULTS, FOR_EVER, TIMEOUT, Scene, through
from tests.faults.test_late import arrive
from tests.faults.waiters import LOCK, NAME, QUEUE, renew_now
from tests.waiting import PATIENCE, eventually

GUARD = "redislock:guard"
TTL = 3.0
REINSTATE = script("mutex_reinstate")
ACQUIRE = script("mutex_acquire_guarded")


@pytest.fixture
def harmed(own_server: RedisServer) -> Iterator[Redis]:
    """A server of the test's own; the locks go there, too."""
    with Redis.from_url(own_server.url) as redis:
        yield redis


def lock(**options: Any) -> redis_lock:
    return redis_lock(NAME, **{"ttl": TTL, "after_loss": "wait", **options})


def by_another(api: Api, taken: Lock, **arguments: Any) -> Any:
    """Acquire it as another thread or task."""
    return api.start(lambda: api.acquire(taken, **arguments)).result(PATIENCE)


def know_all(redis: Redis) -> None:
    """Let the server have forgotten nothing, as one that has run for long."""
    redis.set(GUARD, 0)


def microseconds(redis: Redis) -> int:
    seconds, rest = redis.time()
    return int(seconds) * 1_000_000 + int(rest)


def restart_empty(server: RedisServer, redis: Redis) -> None:
    server.stop()
    server.start()


def flush(server: RedisServer, redis: Redis) -> None:
    redis.flushall()


@pytest.mark.parametrize("lose", [restart_empty, flush])
def test_its_holder_keeps_it(
    api: Api, own_server: RedisServer, harmed: Redis, lose: Callable[[RedisServer, Redis], None]
) -> None:
    """Its renewal puts the lease back, with its fencing token. A newcomer that waits out the pause
    sees it, and gets the lock when it is released."""
    know_all(harmed)
    lease = api.acquire(lock())
    before = harmed.get(LOCK)
    lose(own_server, harmed)
    newcomer = api.start(lambda: api.acquire(lock(wait=PATIENCE)))
    eventually(lambda: harmed.exists(LOCK))
    # But for the mark, which says that the index has it.
    assert harmed.get(LOCK)[:32] + harmed.get(LOCK)[33:] == before[:32] + before[33:]
    assert int(harmed.get("redislock:clock")) >= lease.fencing_token
    time.sleep(TTL + 1)
    assert lease.state == LeaseState.HELD
    assert not newcomer.done()
    assert api.holder(lock()).fencing_token == lease.fencing_token
    api.release(lease)
    second = newcomer.result(PATIENCE)
    assert second.fencing_token > lease.fencing_token
    api.release(second)


def test_by_default_there_are_two(api: Api, harmed: Redis) -> None:
    """What it is for."""
    lease = api.acquire(lock(after_loss="go"))
    harmed.flushall()
    second = by_another(api, lock(after_loss="go"), wait=0)
    assert lease.state == second.state == LeaseState.HELD
    assert not harmed.exists(GUARD)
    with pytest.raises(LeaseLost):
        api.release(lease)
    api.release(second)


def test_its_holder_is_dead(api: Api, harmed: Redis) -> None:
    """The newcomer has it when the longest lease that can have been forgotten has ended."""
    know_all(harmed)
    forgotten = api.acquire(lock(renew=False))
    began = time.monotonic()
    harmed.flushall()
    second = by_another(api, lock(wait=PATIENCE))
    assert TTL <= time.monotonic() - began < TTL + 2
    assert forgotten.state == LeaseState.LOST
    assert int(harmed.get(GUARD)) + TTL * 1e6 <= second.acquired_at.timestamp() * 1e6
    api.release(second)


def test_only_a_pause(api: Api, harmed: Redis) -> None:
    """It is over for good, for all names."""
    know_all(harmed)
    harmed.flushall()
    api.release(api.acquire(lock(ttl=1), wait=PATIENCE))
    for name in NAME, "invoice:43":
        api.release(api.acquire(redis_lock(name, ttl=1, after_loss="wait"), wait=0))


def test_a_wait_that_is_over_first(api: Api, harmed: Redis) -> None:
    """It is an error that says why and until when, no body runs, and nothing stays behind."""
    entered: list[Any] = []
    for wait in 0, 0.5:
        with pytest.raises(
            LockUnavailable,
            match=rf"lost its data, or is new.*'{NAME}'.*before \d\d:\d\d:\d\d UTC, in [23]\.\d s",
        ) as caught:
            api.enter(lock(wait=wait, unavailable="run"), entered.append)
        assert caught.value.waited >= wait
        assert caught.value.passing
    assert not entered
    assert set(harmed.scan_iter("redislock:{*")) == set()


def test_a_wait_that_has_begun_before(api: Api, harmed: Redis) -> None:
    """Its place in the queue was not lost, and it gives that up, too."""
    know_all(harmed)
    forgotten = api.acquire(lock(renew=False, ttl=60))
    waiter = api.start(lambda: api.acquire(lock(ttl=60, wait=3)))
    eventually(lambda: harmed.zcard(QUEUE) == 1)
    harmed.delete(LOCK, GUARD)
    with pytest.raises(LockUnavailable, match="lost its data"):
        waiter.result(PATIENCE)
    assert not harmed.exists(QUEUE)
    with pytest.raises(LeaseLost):
        harmed.set(GUARD, 0)
        api.release(forgotten)


def test_a_new_server(api: Api, harmed: Redis) -> None:
    """It can't be told from one that has lost its data, so the first ones wait, unless an operator
    says that nothing was lost."""
    with pytest.raises(LockUnavailable):
        api.acquire(lock(ttl=60), wait=0)
    harmed.set(GUARD, 0)
    api.release(api.acquire(lock(ttl=60), wait=0))


def test_each_waits_for_its_own_ttl(api: Api, harmed: Redis) -> None:
    """A short lock does not wait for the holders of a long one."""
    for ttl, left in ((600, "600.0"), (TTL, r"[23]\.\d")):
        with pytest.raises(LockUnavailable, match=rf"in {left} s"):
            api.acquire(lock(ttl=ttl), wait=0)
    harmed.set(GUARD, microseconds(harmed) - 10_000_000)
    with pytest.raises(LockUnavailable, match=r"in (590.0|589\.\d) s"):
        api.acquire(lock(ttl=600), wait=0)
    api.release(api.acquire(lock(), wait=0))


def test_a_holder_with_a_longer_ttl(api: Api, harmed: Redis) -> None:
    """It keeps the lock, too, if its renewal comes before the newcomer's own ttl is over."""
    know_all(harmed)
    lease = api.acquire(lock(ttl=2 * TTL))
    harmed.flushall()
    newcomer = api.start(lambda: api.acquire(lock(wait=2 * TTL)))
    assert newcomer.result(PATIENCE) is None
    assert lease.state == LeaseState.HELD
    api.release(lease)


def test_the_guard_is_lost_alone(api: Api, harmed: Redis) -> None:
    """It was evicted, say. Who holds a lock hands it on as ever; who finds one free pauses."""
    know_all(harmed)
    lease = api.acquire(lock())
    waiter = api.start(lambda: api.acquire(lock(wait=PATIENCE)))
    eventually(lambda: harmed.zcard(QUEUE) == 1)
    harmed.delete(GUARD)
    api.extend(lease)
    assert by_another(api, lock(), wait=0) is None
    api.release(lease)
    second = waiter.result(1)
    api.release(second)
    assert not harmed.exists(GUARD)
    with pytest.raises(LockUnavailable):
        api.acquire(lock(), wait=0)


def test_the_lock_is_lost_alone(api: Api, harmed: Redis) -> None:
    """That is not noticed: the server knows no more than that the lock is free."""
    know_all(harmed)
    lease = api.acquire(lock())
    harmed.delete(LOCK)
    with pytest.raises(LeaseLost):
        api.extend(lease)
    second = api.acquire(lock(), wait=0)
    assert lease.state == LeaseState.LOST
    api.release(second)


def test_nothing_is_reinstated_after_the_pause(api: Api, harmed: Redis) -> None:
    """Others may have held it since."""
    know_all(harmed)
    lease = api.acquire(lock())
    harmed.flushall()
    harmed.set(GUARD, microseconds(harmed) - int(TTL * 1e6))
    with pytest.raises(LeaseLost):
        api.extend(lease)
    assert not harmed.exists(LOCK)


def test_nothing_is_reinstated_over_another_holder(api: Api, harmed: Redis) -> None:
    know_all(harmed)
    lease = api.acquire(lock())
    harmed.flushall()
    other = by_another(api, lock(after_loss="go"), wait=0)
    with pytest.raises(LeaseLost, match="holds the lock now"):
        api.extend(lease)
    assert harmed.get(LOCK).startswith(other.token.encode())
    api.release(other)


def test_one_that_is_reinstated_twice_lives_longer(harmed: Redis) -> None:
    """The first answer may have been lost, and come late: the lease lives from the second on."""
    know_all(harmed)
    lease = lock().acquire()
    assert lease is not None
    harmed.pexpire(LOCK, 1000)
    port, claim = SyncPort(lease._server), lease._claim
    assert run(mutex.reinstate(port, [claim], [TTL], [lease._lifetime.deadline])) == [None]
    assert 1 < harmed.pttl(LOCK) / 1000 <= TTL
    lease.release()


def test_nothing_is_reinstated_that_was_cleared(api: Api, harmed: Redis) -> None:
    """An operator has cleared it since the data were lost."""
    know_all(harmed)
    lease = api.acquire(lock())
    harmed.flushall()
    api.extend(lease)
    assert harmed.zscore("redislock:index", LOCK) is not None, "it is listed at once"
    assert TTL - 1 < harmed.pttl(LOCK) / 1000 <= TTL
    assert api.clear(lock(), reason="test") is not None
    with pytest.raises(LeaseLost, match="cleared"):
        api.extend(lease)
    assert not harmed.exists(LOCK)


def test_released_before_it_was_renewed(api: Api, harmed: Redis) -> None:
    """Nobody else can have had it: it was not lost."""
    know_all(harmed)
    lease = api.acquire(lock())
    harmed.flushall()
    api.release(lease)
    assert lease.state == LeaseState.RELEASED
    assert not harmed.exists(LOCK)


def test_the_clock_was_set_back(api: Api, harmed: Redis) -> None:
    """Nobody knows then since when the server has forgotten nothing."""
    harmed.set(GUARD, microseconds(harmed) + 3_600_000_000)
    with pytest.raises(LockUnavailable, match=r"in 0\.\d s|in 1\.0 s"):
        api.acquire(lock(ttl=1), wait=0)
    api.release(api.acquire(lock(ttl=1), wait=PATIENCE))


def test_lost_twice(api: Api, harmed: Redis) -> None:
    know_all(harmed)
    lease = api.acquire(lock())
    for _ in range(2):
        harmed.flushall()
        renew_now(lease)
        eventually(lambda: harmed.exists(LOCK))
    assert lease.state == LeaseState.HELD
    api.release(lease)


def test_many(api: Api, harmed: Redis) -> None:
    """Beside locks that are not guarded, which are lost."""
    know_all(harmed)
    kept = [api.acquire(redis_lock(f"kept:{n}", ttl=TTL, after_loss="wait")) for n in range(300)]
    lost = [api.acquire(redis_lock(f"lost:{n}", ttl=TTL)) for n in range(3)]
    harmed.flushall()
    eventually(lambda: all(lease.state == LeaseState.LOST for lease in lost))
    eventually(lambda: len(harmed.keys("redislock:{kept:*}")) == 300)
    time.sleep(TTL)
    assert {lease.state for lease in kept} == {LeaseState.HELD}
    for lease in kept:
        api.release(lease)


def test_taken_again(harmed: Redis) -> None:
    """A lock that is taken again in its own block asks nobody."""
    know_all(harmed)
    with lock() as lease:
        harmed.flushall()
        with lock(reentrant=True):
            lease.check()
    assert not harmed.exists(LOCK)


def test_several_names(api: Api, harmed: Redis) -> None:
    """A `MultiLock` waits if one of its names is free; its names are reinstated, each with its
    fencing token."""
    know_all(harmed)
    both = MultiLock(["a", "b"], ttl=TTL, after_loss="wait")
    lease = api.acquire(both)
    harmed.flushall()
    other = MultiLock(["b", "c"], ttl=TTL, after_loss="wait")
    with pytest.raises(LockUnavailable):
        by_another(api, other, wait=0)
    renew_now(lease)
    eventually(lambda: harmed.exists("redislock:{a}", "redislock:{b}") == 2)
    for name, fence in lease.fencing_tokens.items():
        assert b"|%d|" % fence in harmed.get(f"redislock:{{{name}}}").replace(b"+", b"|")
    newcomer = api.start(lambda: api.acquire(other, wait=PATIENCE))
    time.sleep(TTL + 1)
    assert lease.state == LeaseState.HELD
    assert not newcomer.done()
    api.release(lease)
    api.release(newcomer.result(PATIENCE))


def test_several_names_of_which_one_is_held(api: Api, harmed: Redis) -> None:
    """The other one is free, so its holder may have been forgotten."""
    know_all(harmed)
    forgotten = api.acquire(redis_lock("b", ttl=TTL, renew=False, after_loss="wait"))
    began = time.monotonic()
    harmed.flushall()
    known = api.acquire(redis_lock("a", ttl=TTL))
    both = MultiLock(["a", "b"], ttl=TTL, after_loss="wait")
    with pytest.raises(LockUnavailable, match="who holds 'a, b'"):
        by_another(api, both, wait=0)
    waiter = api.start(lambda: api.acquire(both, wait=PATIENCE))
    time.sleep(0.5)
    api.release(known)
    second = waiter.result(PATIENCE)
    assert time.monotonic() - began >= TTL
    assert forgotten.state == LeaseState.LOST
    api.release(second)


def test_one_of_several_names(api: Api, harmed: Redis) -> None:
    """Those that are still there are extended as ever."""
    know_all(harmed)
    lease = api.acquire(MultiLock(["a", "b"], ttl=TTL, after_loss="wait"))
    harmed.delete("redislock:{a}", GUARD)
    api.extend(lease)
    assert harmed.exists("redislock:{a}", "redislock:{b}") == 2
    api.release(lease)
    assert not harmed.exists("redislock:{a}", "redislock:{b}")


def test_a_name_that_is_guarded(api: Api, harmed: Redis, settings: Any) -> None:
    """A `MultiLock` does not take it in another way than `redis_lock` does."""
    settings.REDISLOCK = {"LOCKS": {"a": {"AFTER_LOSS": "wait"}}}
    with pytest.raises(LockUnavailable, match="lost its data"):
        api.acquire(MultiLock(["a", "b"]), wait=0)
    harmed.set(GUARD, 0)
    api.release(api.acquire(MultiLock(["a", "b"]), wait=0))


def test_once(api: Api, harmed: Redis, settings: Any) -> None:
    """Work is not begun beside somebody who is at it."""
    know_all(harmed)
    settings.REDISLOCK = {"AFTER_LOSS": "wait", "TTL": TTL}
    work = once("warm-cache", ttl=60)

    def inside(first: bool) -> None:
        assert first
        harmed.flushall()
        other = api.start(lambda: api.enter(once("warm-cache", ttl=60), bool))
        with pytest.raises(LockUnavailable):
            other.result(PATIENCE)

    api.enter(work, inside)
    assert not harmed.exists("redislock:{once:warm-cache}")
    assert not api.enter(work, bool), "it is done"


@pytest.mark.usefixtures("harmed")
def test_a_view(rf: Any, settings: Any) -> None:
    """It answers that it can't be done now."""
    settings.REDISLOCK = {"AFTER_LOSS": "wait"}
    response = lock_view("checkout")(pytest.fail)(rf.get("/"))
    assert response.status_code == 503


def test_continued_elsewhere(api: Api, harmed: Redis) -> None:
    """An exported lease stays guarded."""
    know_all(harmed)
    lease = api.restore(api.acquire(lock()).export())
    harmed.flushall()
    api.extend(lease)
    assert harmed.get(LOCK).startswith(lease.token.encode())
    api.release(lease)


def test_cache_lock(harmed: Redis, settings: Any) -> None:
    """The drop-in follows the settings, with the error of redis-py."""
    options = settings.CACHES["default"]["OPTIONS"]
    options["CLIENT_CLASS"] = "django_redislock.client.LockingClient"
    settings.CACHES = {**settings.CACHES}
    settings.REDISLOCK = {"AFTER_LOSS": "wait"}
    with pytest.raises(RedisTimeoutError, match="lost its data"):
        cache.lock("drop-in", timeout=60).acquire(blocking=False)
    harmed.set(GUARD, 0)
    with cache.lock("drop-in", timeout=60):
        pass


# Messages that are lost.


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("matches", [ACQUIRE, REINSTATE], ids=["acquire", "reinstate"])
def test_a_lost_message(scene: Scene, matches: Any, fault: Fault) -> None:
    """One that asks, or one that puts back: nothing changes."""
    scene.connect()
    know_all(scene.redis)
    rule = scene.lose(matches, fault=fault)
    lease = scene.acquire(ttl=6, after_loss="wait")
    ends = lease._lifetime.deadline
    scene.redis.delete(scene.key, GUARD)
    renew_now(lease)
    eventually(lambda: lease._lifetime.deadline > ends)
    assert rule.count == 1
    with pytest.raises(LockUnavailable, match="lost its data"):
        scene.api.acquire(redis_lock("another", using="direct", after_loss="wait"), wait=0)
    scene.owned(lease)
    scene.release(lease)
    assert not scene.redis.exists(scene.key)


def late(scene: Scene, ttl: float = 30, times: int = 1) -> tuple[Lease, Rule]:
    """A lease that the server has forgotten, and a request to reinstate it that is on its way."""
    scene.connect()
    know_all(scene.redis)
    lease = scene.acquire(ttl=ttl, after_loss="wait")
    scene.redis.delete(scene.key, GUARD)
    rule = scene.lose(REINSTATE, times=times, fault=Fault.HOLD_REQUEST)
    renew_now(lease)
    rule.happened()
    return lease, rule


def test_reinstated_after_its_release(scene: Scene) -> None:
    """It does not become a lock that nobody holds."""
    lease, rule = late(scene)
    scene.release(lease)
    arrive(rule)
    assert not scene.redis.exists(scene.key)


def test_reinstated_after_somebody_else_has_it(scene: Scene) -> None:
    """Somebody who does not wait, say. It takes nothing from them."""
    _, rule = late(scene)
    other = scene.acquire_direct(after_loss="go")
    arrive(rule)
    scene.owned(other)
    scene.release(other)


def test_reinstated_after_its_lease_has_ended(scene: Scene) -> None:
    """Others may have held the lock since, and the server may have lost its data once more."""
    lease, rule = late(scene, ttl=2, times=FOR_EVER)
    eventually(lambda: lease.state == LeaseState.LOST)
    scene.redis.delete(GUARD)
    arrive(rule)
    assert not scene.redis.exists(scene.key)
    with pytest.raises(LeaseLost):
        scene.api.release(lease)


def test_a_release_that_takes_its_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease was reinstated only for a moment, and was held until the release began."""
    scene.connect()
    know_all(scene.redis)
    lease = scene.acquire(ttl=30, after_loss="wait")
    scene.redis.delete(scene.key, GUARD)
    reinstate = mutex.reinstate

    async def slowly(*args: Any, **options: Any) -> Any:
        found = await reinstate(*args, **options)
        assert scene.redis.exists(scene.key)
        eventually(lambda: not scene.redis.exists(scene.key))
        return found

    monkeypatch.setattr(mutex, "reinstate", slowly)
    scene.release(lease)
    assert lease.state == LeaseState.RELEASED
    assert not scene.redis.exists(scene.key)


def test_a_renewal_that_finds_nothing_after_the_release(
    scene: Scene, redis_server: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when the lease was released. It puts nothing back."""
    scene.fault = Fault.RESET_AFTER  # nothing is swallowed, so a slow machine may take its time
    settings.CACHES = through(scene.proxy, redis_server, scene)
    answered = threading.Event()
    reinstate = lifetime._reinstate

    async def looked(*args: Any) -> Any:
        try:
            return await reinstate(*args)
        finally:
            answered.set()

    monkeypatch.setattr(lifetime, "_reinstate", looked)
    scene.connect()
    know_all(scene.redis)
    lease = scene.acquire(ttl=60, after_loss="wait")
    rule = scene.lose(EXTEND, fault=Fault.HOLD_REQUEST)
    renew_now(lease)
    rule.happened()
    scene.redis.delete(scene.key, GUARD)
    scene.release(lease)
    arrive(rule)
    assert answered.wait(PATIENCE)
    assert lease.state == LeaseState.RELEASED
    assert not scene.redis.exists(scene.key)


def test_asked_during_the_pause_and_arrived_after_it(scene: Scene) -> None:
    """An acquire that was given up in the pause is withdrawn."""
    scene.connect()
    rule = scene.lose(ACQUIRE, times=FOR_EVER, fault=Fault.HOLD_REQUEST)
    with pytest.raises(LockUnavailable):
        scene.acquire(ttl=1, wait=1.5 * TIMEOUT, after_loss="wait")
    eventually(lambda: scene.redis.keys(f"{scene.key}:gone:*"))
    know_all(scene.redis)
    arrive(rule)
    assert not scene.redis.exists(scene.key)


# Where it can't be kept.


def caches_of(*hosts: str) -> dict[str, Any]:
    return {host: entry(f"redis://{host}:1/0") for host in hosts}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"KIND": "semaphore", "LIMIT": 3}, "a semaphore"),
        ({"KIND": "read"}, "a read"),
        ({"KIND": "write"}, "a write"),
        ({"KIND": "timestamp"}, "a timestamp"),
        ({"TIMESTAMP_KEY": "old"}, "a mutex with a timestamp_key"),
        ({"KIND": "redlock", "USING": ["default", "b", "c"]}, "a redlock"),
    ],
)
def test_other_kinds(options: dict[str, Any], what: str, redis: Redis, settings: Any) -> None:
    """It is said at once, and nothing is locked."""
    settings.REDISLOCK = {"AFTER_LOSS": "wait", "LOCKS": {NAME: options}}
    settings.CACHES = {**settings.CACHES, **caches_of("b", "c")}
    with pytest.raises(ValueError, match=rf"after_loss='wait' is for a mutex, not for {what}\."):
        redis_lock(NAME).acquire(wait=0)
    assert not redis.keys("redislock:*")


def test_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "clustered", lambda using: not clustered(using))
    plan.forget_plans()
    taken: Lock = lock()
    with pytest.raises(
        ValueError, match="can't be kept on a Redis Cluster or another sharded server"
    ):
        taken.acquire(wait=0)
