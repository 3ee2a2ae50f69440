"""A server that is sharded behind one address: one script may have keys of one slot only, and
nobody says so before. Here it is a Redis Cluster of one node, used by entries for a single server,
or a proxy before two servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis import Redis
from redis.client import Monitor

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import (
    LeaseState,
    LockNotAcquired,
    LockUnavailable,
    MultiLock,
    Redlock,
    TimestampLock,
    redis_lock,
)
from django_redislock.contrib.prometheus.fleet import Fleet
from django_redislock.doctor.rules import server_findings
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.periodic import Ledger, RunOutcome, periodic
from django_redislock.periodic import job as registry
from django_redislock.periodic.execution import JobRun
from django_redislock.primitives import ledger
from django_redislock.primitives.contract import run
from django_redislock.primitives.ledger import Wanted
from django_redislock.transport import server as servers
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from django_redislock.views import idempotent_view
from tests.cluster.looking import NAMES, do_once, hold_each, inspect, waiting
from tests.cluster.sharding import ALIBABA, AZURE, Sharding
from tests.contract.api import Api, SyncApi
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually

ENTRIES: dict[str, dict[str, Any]] = {
    "django-redis": {"BACKEND": "django_redis.cache.RedisCache"},
    "django": {"BACKEND": "django.core.cache.backends.redis.RedisCache"},
    "declared": {
        "BACKEND": "django_redis.cache.RedisCache",
        "OPTIONS": {"CONNECTION_FACTORY": "django_redislock.cluster.OneAddressConnectionFactory"},
    },
}


@pytest.fixture(scope="module")
def shared_sharding() -> Iterator[Sharding]:
    with Sharding() as sharding:
        yield sharding


@pytest.fixture(autouse=True)
def _nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_by_slot", set())


@pytest.fixture
def unknown(node: RedisCluster, settings: Any) -> Iterator[Redis]:
    """A cluster of one node, as an entry of django-redis. Its scripts touch their KEYS only."""
    settings.CACHES = {"default": {**ENTRIES["django-redis"], "LOCATION": node.urls[0]}}
    with Redis.from_url(node.urls[0]) as client:
        client.flushall()
        with client.monitor() as monitor:
            scripts = Scripts(monitor)
            yield client
            client.echo(END)
            scripts.ended.join(PATIENCE)
        assert not scripts.strangers


END = "the end of the test"
KEYLESS = {"TIME", "PUBLISH", "PUBSUB", "SPUBLISH"}


class Scripts:
    """Listens to what scripts do."""

    def __init__(self, monitor: Monitor) -> None:
        self.strangers: list[str] = []
        """What they did with keys that are not in KEYS."""
        self._monitor = monitor
        self.ended = threading.Thread(target=self._listen, daemon=True)
        self.ended.start()

    def _listen(self) -> None:
        keys: list[str] = []
        for seen in self._monitor.listen():
            if seen["command"] == f"ECHO {END}":
                return
            command, *words = seen["command"].split()
            if seen["client_type"] == "lua":
                touched = words if command.upper() == "EXISTS" else words[:1]
                if keys and command.upper() not in KEYLESS and not {*touched} <= {*keys}:
                    self.strangers.append(seen["command"])
            elif command == "EVALSHA":
                keys = words[2 : 2 + int(words[1])]
            elif command == "EVAL":
                # A source has spaces, and a key has none. The doctor has a source of its own.
                words = seen["command"].partition("end)()}")[2].split()
                keys = words[1 : 1 + int(words[0])] if words else []


@pytest.fixture
def sharding(shared_sharding: Sharding, settings: Any) -> Sharding:
    """The proxy, as an entry of django-redis."""
    settings.CACHES = {"default": {**ENTRIES["django-redis"], "LOCATION": shared_sharding.url}}
    shared_sharding.flush()
    shared_sharding.refusal = AZURE
    return shared_sharding


@pytest.fixture(params=[*ENTRIES, "proxy"])
def one(request: pytest.FixtureRequest, settings: Any) -> Iterator[Redis]:
    """Both, and the cluster by each kind of entry; and a plain client."""
    if request.param == "proxy":
        with Redis.from_url(request.getfixturevalue("sharding").url) as client:
            yield client
    else:
        unknown = request.getfixturevalue("unknown")
        url = settings.CACHES["default"]["LOCATION"]
        settings.CACHES = {"default": {**ENTRIES[request.param], "LOCATION": url}}
        yield unknown


def test_held_refused_released(one: Redis, api: Api) -> None:
    """From the first request on, with fencing tokens that grow."""
    hold_each(api, NAMES)


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "read", "write", "timestamp", "migration"])
def test_a_fresh_process(node: RedisCluster, unknown: Redis, start: Start, kind: str) -> None:
    """Its very first request succeeds."""
    worker: Worker = start("hold", "30", kind, url=node.urls[0])
    worker.holds()
    worker.go_on()
    assert worker.says() == "released"


def test_multi(one: Redis, api: Api) -> None:
    """Names of many slots at the first try, though nobody knew of slots; and what is held excludes
    all of them."""
    lease = api.acquire(MultiLock(NAMES, ttl=10, renew=False), wait=0)
    assert sorted(lease.fencing_tokens) == sorted(NAMES)
    api.extend(lease, 60)
    other = MultiLock(["job", NAMES[7]])
    assert api.start(lambda: api.acquire(other, wait=0)).result(PATIENCE) is None
    assert api.holder(redis_lock("job")) is None
    waiter = api.start(lambda: api.acquire(other, wait=PATIENCE))
    waiting(1, NAMES[7])
    api.release(lease)
    api.release(waiter.result(PATIENCE))
    assert all(api.holder(redis_lock(name)) is None for name in NAMES)


def test_a_multi_lock_that_waits_at_once(unknown: Redis, api: Api) -> None:
    """One of its names is held when it is found out that there are slots."""
    redis_lock(NAMES[5]).acquire()
    servers._by_slot.clear()
    with pytest.raises(LockNotAcquired) as caught:
        api.start(lambda: api.enter(MultiLock(NAMES, wait=0), lambda _: None)).result(PATIENCE)
    assert caught.value.name == NAMES[5]
    assert all(api.holder(redis_lock(name)) is None for name in NAMES if name != NAMES[5])


def test_released_by_a_process_that_does_not_know(unknown: Redis, api: Api) -> None:
    """All names, slot by slot."""
    lease = api.acquire(MultiLock(NAMES))
    servers._by_slot.clear()
    api.release(lease)
    assert all(api.holder(redis_lock(name)) is None for name in NAMES)


def test_timestamp_locks(one: Redis, api: Api) -> None:
    """Alone, and beside a mutex, both renewed."""
    leases = []
    for number in range(4):
        lock = redis_lock(f"job:{number}", timestamp_key=f"lock.{number}", ttl=2)
        leases.append(api.acquire(lock))
        leases.append(api.acquire(TimestampLock(f"lock.alone.{number}", ttl=2)))
        other = TimestampLock(f"lock.{number}", wait=0)
        assert api.start(lambda other=other: api.acquire(other)).result(PATIENCE) is None
    until = time.monotonic() + 4
    eventually(lambda: time.monotonic() > until)
    for lease in leases:
        lease.check()
        api.release(lease)


def test_a_key_that_is_alone_in_its_slot(unknown: Redis) -> None:
    """No lock can be made of it, and the error says why."""
    lock = TimestampLock("x", timestamp_key="lock}import")
    with pytest.raises(LockUnavailable, match="Sharded behind one address"):
        lock.acquire(wait=0)
    with pytest.raises(ValueError, match="hash tag"):
        lock.acquire(wait=0)


def test_what_is_done_once(one: Redis, api: Api) -> None:
    """In one script or in several."""
    do_once(api)


def test_renewal(one: Redis) -> None:
    """Of 300 leases in as many slots; one that was deleted is lost."""
    leases = [redis_lock(f"row:{number}", ttl=5).acquire() for number in range(300)]
    one.delete("redislock:{row:7}")
    eventually(lambda: leases[7].state == LeaseState.LOST)
    until = time.monotonic() + 6
    eventually(lambda: time.monotonic() > until)
    for number, lease in enumerate(leases):
        assert number == 7 or lease.state == LeaseState.HELD
    watched = watchdog(server_of("default"))
    assert len(watched.register.leases()) == 299
    for lease in leases[:7] + leases[8:]:
        lease.release()


def test_a_lease_that_travels(one: Redis, api: Api) -> None:
    """Exported, and restored by a process that does not know of slots."""
    text = api.acquire(redis_lock("job")).export()
    servers._by_slot.clear()
    restored = api.restore(text)
    api.extend(restored)
    api.release(restored)


LOCKING: dict[str, dict[str, Any]] = {
    "django-redis": {
        **ENTRIES["django-redis"],
        "OPTIONS": {"CLIENT_CLASS": "django_redislock.client.LockingClient"},
    },
    "django": {"BACKEND": "django_redislock.cache.RedisCache"},
}


@pytest.mark.parametrize("backend", LOCKING)
def test_the_drop_in(unknown: Redis, settings: Any, backend: str) -> None:
    """`cache.lock()` locks any key, is renewed, and its waiters are woken."""
    url = settings.CACHES["default"]["LOCATION"]
    settings.CACHES = {"default": {**LOCKING[backend], "LOCATION": url}}
    settings.REDISLOCK = {"TTL": 0.9}
    with cache.lock("a") as first:
        with cache.lock("b", timeout=5), cache.lock("c{b}"):
            assert cache.lock("a").acquire(blocking=False) is False
        waiting = cache.lock("a", timeout=10, thread_local=False)
        waiter = SyncApi().start(waiting.acquire)
        with pytest.raises(TimeoutError):
            waiter.result(1.5)
        assert first.owned()
    assert waiter.result(PATIENCE) is True
    assert waiting.extend(5)
    waiting.release()
    settings.REDISLOCK = {"AFTER_LOSS": "wait"}
    with pytest.raises(ValueError, match="after_loss='wait' can't be kept"):
        cache.lock("a").acquire()


def test_nothing_is_guarded(unknown: Redis, api: Api) -> None:
    """The first one that asks for it is told so, and so are all others; nothing is left."""
    for lock in (redis_lock("job", after_loss="wait"), MultiLock(NAMES, after_loss="wait")):
        servers._by_slot.clear()
        for _ in range(2):
            with pytest.raises(ValueError, match="after_loss='wait' can't be kept"):
                api.acquire(lock, wait=0)
    assert unknown.keys() == []


def test_a_member_of_a_redlock(
    unknown: Redis,
    node: RedisCluster,
    sharding: Sharding,
    redis_server: RedisServer,
    api: Api,
    settings: Any,
) -> None:
    """Beside a single primary. Later, too, when it is known which of them is sharded."""
    urls = [redis_server.url, sharding.url, node.urls[0]]
    settings.CACHES = {
        alias: {**ENTRIES["django-redis"], "LOCATION": url}
        for alias, url in zip(("default", "b", "c"), urls, strict=True)
    }
    lock = Redlock("job", [*settings.CACHES])
    for _ in range(3):
        lease = api.acquire(lock, wait=0)
        assert api.start(lambda: api.acquire(lock, wait=0)).result(PATIENCE) is None
        assert all(Inspector(alias).get("job") for alias in settings.CACHES)
        api.extend(lease, 60)
        api.release(lease)
    assert {server_of(alias).clustered for alias in ("b", "c")} == {True}
    assert not server_of("default").clustered


@pytest.mark.parametrize("refusal", [AZURE, ALIBABA, "ERR access to a non local key"])
def test_the_words_of_proxies(sharding: Sharding, refusal: str) -> None:
    """Whatever they say, it is understood."""
    sharding.refusal = refusal
    with MultiLock(NAMES, wait=0):
        assert redis_lock(NAMES[0]).locked()
    assert min(sharding.keys()) > 0  # the names are in both shards


def test_jobs(one: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers are read all at once, by a scheduler that has asked for nothing before."""
    monkeypatch.setattr(registry, "_registry", {})

    def nothing() -> None: ...

    for number in range(8):
        periodic(name=f"job-{number}", every=3600)(nothing)
    jobs = registry.jobs()
    _, sights = run(ledger.known(SyncPort(server_of("default")), [job.keys for job in jobs]))
    assert all(sight.claimed for sight in sights)
    for job in jobs[::2]:
        answer = JobRun(job, Wanted(tick=None, overlap="skip")).ask()
        assert answer.run is not None
        port = SyncPort(server_of("default"))
        run(ledger.finish(port, job.keys, answer.run, RunOutcome.DONE, ""))
    servers._by_slot.clear()
    found = Ledger().jobs()
    assert [info.name for info in found] == [job.name for job in jobs]
    assert [len(info.runs) for info in found] == [1, 0] * 4


def test_idempotent_views(one: Redis) -> None:
    """The second request gets the first response."""
    runs = []

    @idempotent_view(scope=lambda request: "")
    def view(request: HttpRequest) -> HttpResponse:
        runs.append(request)
        return HttpResponse(f"run {len(runs)}")

    request = RequestFactory().post("/", headers={"idempotency-key": "1"})
    assert [view(request).content for _ in range(2)] == [b"run 1"] * 2


def test_metrics_and_doctor(one: Redis) -> None:
    """They know all locks, and find nothing wrong, before anybody has locked anything there."""
    leases = [redis_lock(name).acquire() for name in NAMES]
    watchdog(server_of("default")).write_down()
    servers._by_slot.clear()
    text = Fleet().scrape()[0]
    text = text if isinstance(text, str) else text.decode()
    assert 'redislock_up{using="default"} 1' in text
    assert f'state="held",using="default"}} {len(NAMES)}' in text.replace(".0", "")
    servers._by_slot.clear()
    found = {one.id for one in server_findings("default")}
    assert not found & {"redislock.E104", "redislock.W107", "redislock.W108", "redislock.W109"}
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("how", ["broken", "silent"])
def test_a_part_that_is_down(sharding: Sharding, how: str) -> None:
    """It costs its own leases, and no others, even if its own ones are more urgent. Only if it is
    silent, the others are unknown for a moment."""
    here, there = ([n for n in NAMES if sharding.shard_of(n) == part][:3] for part in range(2))
    ended = redis_lock(there[0], ttl=12).acquire()
    leases = [redis_lock(name, ttl=12).acquire() for name in here]
    with getattr(sharding, how)(1):
        until = time.monotonic() + 16
        while time.monotonic() < until:
            for lease in leases:
                assert lease.state == LeaseState.HELD or how == "silent"
                lease.check()
            time.sleep(0.02)
        assert ended.state == LeaseState.LOST
    eventually(lambda: all(lease.state == LeaseState.HELD for lease in leases))
    for lease in leases:
        lease.release()


def test_inspection(one: Redis, api: Api) -> None:
    """By a process that has not locked anything."""
    inspect(api, one.set, forget=servers._by_slot.clear)
