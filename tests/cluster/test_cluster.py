"""Locks on three primaries: all that a lock does, wherever its name happens to be."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.core.cache import caches as django_caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import (
    Lease,
    LeaseState,
    LockUnavailable,
    MultiLock,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.base.tokens import word
from django_redislock.client import Lock
from django_redislock.doctor.rules import server_findings
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys, counter
from django_redislock.transport.cluster import Cluster, slot_of
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.caches import cluster as caches
from tests.cachex import cachex
from tests.cluster.looking import NAMES, do_once, inspect, killed_waiters, waiting
from tests.contract.api import Api
from tests.pasting import paste
from tests.processes import Worker
from tests.test_doctor import documented
from tests.waiting import PATIENCE, eventually

Begin = Callable[..., Worker]
Hang = Callable[[str], RedisServer]


def test_the_names_are_spread(cluster: RedisCluster) -> None:
    """Else the tests below would say little."""
    owners = {cluster.owner(f"redislock:{{{name}}}").tcp_port for name in NAMES}
    assert len(owners) == 3


def test_processes_at_different_nodes(cluster: RedisCluster, begin: Begin) -> None:
    """Each knows another node, and all exclude each other."""
    holder = begin(0, "hold", "30")
    first = holder.holds()
    second = begin(1, "wait")
    waiting(1)
    third = begin(2, "wait")
    waiting(2)
    holder.go_on()
    its = second.holds()
    second.go_on()
    last = third.holds()
    third.go_on()
    assert first < its < last


def test_forty_killed_waiters(cluster: RedisCluster, begin: Begin) -> None:
    """Each is tried for a second, until none of them has shown a sign of life for five: then the
    first that looks has the lock."""
    lease = redis_lock("job", ttl=600).acquire()
    assert lease is not None
    killed_waiters(cluster, lease, 40, inbox="redislock:inbox:dead")
    waiter = begin(1, "wait")
    waiting(41)
    lease.release()
    released = time.monotonic()
    waiter.holds()
    assert time.monotonic() - released < 15  # about five, and at most eight on a quiet machine


def test_renewal(cluster: RedisCluster, api: Api) -> None:
    """Of leases all over the cluster; one that was deleted is lost, and the others are not."""
    leases = [api.acquire(redis_lock(name, ttl=0.9)) for name in NAMES]
    key = f"redislock:{{{NAMES[3]}}}"
    cluster.call(cluster.owner(key), "DEL", key)
    eventually(lambda: leases[3].state == LeaseState.LOST)
    del leases[3]
    watched = watchdog(server_of("default"))
    for lease in leases:
        due = lease._lifetime.due
        eventually(lambda lease=lease, due=due: lease._lifetime.due > due)
        assert watched.register.held(lease._claim.keys.lock) == [lease]
        api.release(lease)


@pytest.fixture
def hung(cluster: RedisCluster) -> Iterator[Hang]:
    """Lets the node hang that has a key, and the others go on without it."""

    def coverage(needed: str) -> None:
        for node in cluster.nodes:
            cluster.call(node, "CONFIG", "SET", "cluster-require-full-coverage", needed)

    coverage("no")  # else a cluster stops as a whole when a primary has no successor
    paused: list[RedisServer] = []

    def hang(key: str) -> RedisServer:
        paused.append(cluster.owner(key))
        paused[0].pause()
        return paused[0]

    yield hang
    for node in paused:
        node.resume()
    coverage("yes")
    cluster.settle()


def test_the_leases_of_a_silent_node(cluster: RedisCluster, api: Api, hung: Hang) -> None:
    """They are unknown, and those at the other nodes are renewed all the same."""
    leases = {name: api.acquire(redis_lock(name, ttl=12)) for name in NAMES}
    due = {name: lease._lifetime.due for name, lease in leases.items()}
    there = next(names for names in by_node(cluster) if NAMES[0] in names)
    silent = hung(f"redislock:{{{NAMES[0]}}}")
    eventually(lambda: all(leases[name].state == LeaseState.UNKNOWN for name in there))
    others = set(NAMES) - {*there}
    eventually(lambda: all(leases[name]._lifetime.due > due[name] for name in others))
    assert all(leases[name].state == LeaseState.HELD for name in others)
    silent.resume()
    eventually(lambda: all(leases[name].state == LeaseState.HELD for name in there))
    for lease in leases.values():
        api.release(lease)


def by_node(cluster: RedisCluster) -> list[list[str]]:
    """`NAMES`, together those that are on one node."""
    nodes: dict[int, list[str]] = {}
    for name in NAMES:
        nodes.setdefault(cluster.owner(f"redislock:{{{name}}}").tcp_port, []).append(name)
    return sorted(nodes.values())


def go_on(leases: list[Lease], seconds: float) -> None:
    """They are held for all of that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for lease in leases:
            lease.check()
        time.sleep(0.05)


def renew_now(leases: list[Lease]) -> None:
    """They are due, and a renewal of each fails."""
    for lease in leases:
        lease._lifetime.due = 0
        watchdog(server_of("default")).reconsider(lease._lifetime)
    eventually(lambda: all(lease.state == LeaseState.UNKNOWN for lease in leases))


@pytest.mark.parametrize("kind", ["multi", "migration"])
def test_leases_of_several_nodes(cluster: RedisCluster, hung: Hang, kind: str) -> None:
    """When one of the nodes hangs, that costs none of those that are elsewhere only: neither plain
    ones at the healthy one, nor others of several nodes."""
    first, second, third = by_node(cluster)
    spanning = []
    for here, there in zip(first[:2], second[:2], strict=True):
        lock: Any = MultiLock([here, there], ttl=60)
        if kind == "migration":
            lock = redis_lock(here, timestamp_key=f"x:{{{there}}}", ttl=60)
            assert cluster.owner(f"redislock:{{{there}}}") is cluster.owner(f"x:{{{there}}}")
        spanning.append(lock.acquire())
    others = [MultiLock([first[2], third[0]], ttl=4).acquire()]
    others += [redis_lock(name, ttl=4).acquire() for name in [*first[3:], *third[1:], "more"]]
    hung(f"redislock:{{{second[0]}}}")
    renew_now(spanning)
    go_on(others, 8)
    assert all(lease.state == LeaseState.UNKNOWN for lease in spanning)
    for lease in others:
        lease.release()


def test_short_leases_beside_a_silent_node(cluster: RedisCluster, hung: Hang) -> None:
    """A request to a node that hangs takes no longer than they can do without renewal."""
    first, second, third = by_node(cluster)
    there = [redis_lock(name, ttl=60).acquire() for name in second]
    short = [redis_lock(name, ttl=3).acquire() for name in [*first, *third]]
    hung(f"redislock:{{{second[0]}}}")
    renew_now(there)
    go_on(short, 7)
    for lease in short:
        lease.release()


def test_what_is_done_once(cluster: RedisCluster, api: Api) -> None:
    """Whichever node has its name."""
    do_once(api)


def test_inspection(cluster: RedisCluster, api: Api) -> None:
    """Whichever node has them."""

    def write(key: str, value: str) -> None:
        cluster.call(cluster.owner(key), "SET", key, value)

    inspect(api, write, forget=lambda: None)


def test_signs_of_life(cluster: RedisCluster, begin: Begin) -> None:
    """One key for each process, not for each lock; it is found in whichever slot it is."""
    begin(1, "hold", "600").holds()
    mine = redis_lock("mine", ttl=600).acquire()

    def shown() -> list[str]:
        return sorted(
            key for node in cluster.nodes for key in cluster.call(node, "KEYS", "*:process:*")
        )

    eventually(lambda: len(shown()) == 2)
    assert mine is not None
    assert all(key.startswith("redislock:process:") for key in shown())
    assert len(Inspector()._left({key.rpartition(":")[2] for key in shown()})) == 2


def test_a_user_who_may_only_lock(cluster: RedisCluster) -> None:
    """The documented rule is enough here, too; without the commands that find a node the doctor
    names them."""
    rule = documented("locks")

    def allow(*more: str) -> None:
        for node in cluster.nodes:
            cluster.call(node, "ACL", "SETUSER", *rule[2:], *more)

    allow()
    url = cluster.urls[0].replace("redis://", "redis://locks:SECRET@")
    with override_settings(CACHES=caches([url])):
        assert "redislock.E105" not in {one.id for one in server_findings("default")}
        for name in NAMES:
            with redis_lock(name), Semaphore(f"{name} places", 2):
                pass
        allow("-asking")
        [message] = {
            one.message.partition(": ")[2]
            for one in server_findings("default")
            if one.id == "redislock.E105"
        }
        assert message.endswith("Missing: +asking")
    for node in cluster.nodes:
        cluster.call(node, "ACL", "DELUSER", "locks")


def test_the_doctor_sees_each_node(cluster: RedisCluster) -> None:
    """And nothing is wrong with it being a cluster, or with the index that it has not."""
    lease = redis_lock("job").acquire()
    findings = list(server_findings("default"))
    assert sum(one.id == "redislock.I101" for one in findings) == 3
    assert all(one.message.startswith("Node 127.0.0.1:") for one in findings)
    wrong = {f"redislock.{name}" for name in ("E104", "W108", "W111", "W112")}
    assert not {one.id for one in findings} & wrong
    assert lease is not None
    lease.release()


def test_what_is_counted(cluster: RedisCluster) -> None:
    """A counter is at one node, and only the doctor's finding about that node has it."""
    key = counter(Keys.of("redislock", "job").index, "missed_wakeups")
    run(SyncPort(server_of("default")).script("count", [key], [word(), 3]))
    assert Inspector().missed_wakeups() == 3
    says = [one.message for one in server_findings("default")]
    assert sum("no message announced: 3" in one for one in says) == 1
    assert not any("not seen" in one.lower() for one in says)


def test_a_single_server_that_is_a_node(cluster: RedisCluster, settings: Any) -> None:
    """Without the factory a lock says what is missing, and so does the doctor."""
    settings.CACHES = caches(
        cluster.urls[0], CONNECTION_FACTORY="django_redis.pool.ConnectionFactory"
    )
    with pytest.raises(LockUnavailable, match="must be a ClusterConnectionFactory"):
        for name in NAMES:
            redis_lock(name).acquire(wait=0)
    found = {one.id: one for one in server_findings("default")}
    paste(found["redislock.E104"].hint, settings)
    assert "redislock.E104" not in {one.id for one in server_findings("default")}


def test_an_entry_of_cachex(cluster: RedisCluster, api: Api, settings: Any) -> None:
    """Its options for the client of a cluster are left out, and locks exclude those of an entry of
    django-redis at all nodes."""
    options = {"socket_timeout": 5, "cluster_error_retry_attempts": 1, "read_from_replicas": True}
    its = {
        "BACKEND": cachex("RedisCluster"),
        "LOCATION": cluster.urls[1:],
        "OPTIONS": options,
    }
    settings.CACHES = {**settings.CACHES, "cachex": its}
    for name in NAMES:
        lease = api.acquire(redis_lock(name, using="cachex"))
        assert api.acquire(redis_lock(name), wait=0) is None
        api.release(lease)
    assert isinstance(server_of("cachex").shared_pool(), Cluster)


def test_replicas(cluster: RedisCluster, api: Api) -> None:
    """There are none, and that is said, over the connection that has written."""
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        api.acquire(redis_lock("job", replicas=1), wait=0)
    assert api.holder(redis_lock("job")) is None


def test_what_can_be_no_node(settings: Any) -> None:
    """Nodes are reached by host and port."""
    settings.CACHES = caches(["unix:///run/redis.sock"])
    with pytest.raises(ImproperlyConfigured, match="redis://host:6379"):
        redis_lock("job").acquire()


def test_names_of_one_slot(cluster: RedisCluster) -> None:
    """`Server.slots` tells which keys one script may touch."""
    slots = server_of("default").slots([f"redislock:{{{name}}}" for name in NAMES])
    assert len({*slots}) == len(NAMES)
    clock, lock = server_of("default").slots(["redislock:{job}:clock", "redislock:{job}"])
    assert clock == lock


def test_the_cache_itself(cluster: RedisCluster) -> None:
    """The project's own use of this cache goes to the right node, too."""
    for name in NAMES:
        cache.set(name, name, 60)
    assert [cache.get(name) for name in NAMES] == NAMES


def test_aliases_that_differ(cluster: RedisCluster, settings: Any) -> None:
    """In a time-out, or a password: they share neither the pools nor the client of the cache."""
    one, other = (caches(cluster.urls[:1], SOCKET_TIMEOUT=n)["default"] for n in (3, 4))
    settings.CACHES = {"default": one, "other": other, "same": one}
    pools = [server_of(alias).shared_pool() for alias in settings.CACHES]
    assert pools[0] is not pools[1]
    assert pools[0] is pools[2]
    clients = [django_caches[alias].client.get_client() for alias in settings.CACHES]
    assert clients[0] is not clients[1]
    assert clients[0] is clients[2]


def test_the_drop_in(cluster: RedisCluster) -> None:
    """It is for a single primary, and says so."""
    with pytest.raises(TypeError, match="one primary"):
        Lock(cache.client.get_client(), "job").acquire()


def test_timestamp_locks(cluster: RedisCluster, api: Api) -> None:
    """Alone, and beside a mutex: both keys may be in any slots, also of several that are renewed
    in one request."""
    leases = []
    # The mutexes are in one slot, what is beside them is not.
    slots: dict[int, list[str]] = {}
    for number in itertools.count():
        names = slots.setdefault(slot_of(f"{{job:{number}}}"), [])
        names.append(f"job:{number}")
        if len(names) == 4:
            break
    for number, name in enumerate(names):
        leases.append(api.acquire(redis_lock(name, timestamp_key=f"lock.{number}", ttl=2)))
        leases.append(api.acquire(TimestampLock(f"lock.alone.{number}", ttl=2)))
        other = TimestampLock(f"lock.{number}", wait=0)
        assert api.start(lambda other=other: api.acquire(other)).result(PATIENCE) is None
    until = time.monotonic() + 4
    eventually(lambda: time.monotonic() > until)
    for lease in leases:
        lease.check()
        api.extend(lease, 30)
    leases[0] = api.restore(leases[0].export())
    for lease in leases:
        api.release(lease)
    for number in range(4):
        api.release(api.acquire(TimestampLock(f"lock.{number}"), wait=0))


def test_a_key_that_is_called_index(cluster: RedisCluster, api: Api) -> None:
    """It is a lock's key like any other, also if it is renewed together with one of its slot."""
    other = api.acquire(TimestampLock("x", timestamp_key="{search:index}", ttl=1.5))
    lease = api.acquire(TimestampLock("search:index", ttl=1.5))
    taken = str(int(time.time()) + 600)
    cluster.call(cluster.owner("search:index"), "SET", "search:index", taken)
    eventually(lambda: lease.state == LeaseState.LOST)
    other.check()
    api.release(other)


@pytest.mark.parametrize("key", ["lock{import", "lock{a}x", "}{a}", "a}b{c}", "{a}{}"])
def test_keys_with_braces(cluster: RedisCluster, key: str) -> None:
    """A hash tag that is none is no obstacle."""
    for lock in (TimestampLock("x", timestamp_key=key), redis_lock("job", timestamp_key=key)):
        lease = lock.acquire(wait=0)
        lease.extend()
        lease.release()


@pytest.mark.parametrize("key", ["lock}import", "lock{}import", "{}", "{}{a}"])
def test_keys_that_are_alone_in_their_slot(cluster: RedisCluster, key: str) -> None:
    """An impossible pair of keys is refused at once."""
    for lock in (TimestampLock("x", timestamp_key=key), redis_lock("job", timestamp_key=key)):
        with pytest.raises(ValueError, match="hash tag"):
            lock.acquire(wait=0)
