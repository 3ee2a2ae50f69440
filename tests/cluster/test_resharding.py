"""A slot moves to another node while its lock is held and waited for; nothing is lost or doubled.

While its keys are on their way, a script that needs several of them is answered with TRYAGAIN, by
both nodes: that passes, so whoever may wait asks again. Valkey can move a slot as a whole from
version 9 on; then no script meets half of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import LeaseState, LockUnavailable, redis_lock
from tests.cluster.looking import waiting
from tests.contract.api import Api, extended
from tests.recovery import Recovery
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
CLOCK = f"{KEY}:clock"


@pytest.fixture
def ends(cluster: RedisCluster) -> Iterator[tuple[RedisServer, RedisServer]]:
    """The node that has the lock, and the one that it moves to."""
    source = cluster.owner(KEY)
    target = next(node for node in cluster.nodes if node is not source)
    yield source, target
    for node in cluster.nodes:
        cluster.call(node, "FLUSHALL")
    if cluster.owner(KEY) is not source:
        cluster.move(KEY, source)


def test_a_slot_that_has_moved(
    cluster: RedisCluster, ends: tuple[RedisServer, RedisServer], api: Api
) -> None:
    """Whoever asks its old node is sent on, and keeps lock, place and fencing token."""
    _, target = ends
    lease = api.acquire(redis_lock("job"))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    waiting(1)

    cluster.move(KEY, target)
    assert cluster.owner(KEY) is target
    api.extend(lease, 60)
    assert api.holder(redis_lock("job")).fencing_token == lease.fencing_token
    api.release(lease)
    following = waiter.result(PATIENCE)
    assert following.fencing_token > lease.fencing_token
    assert cluster.call(target, "EXISTS", KEY) == 1
    api.release(following)


def test_while_it_moves(
    cluster: RedisCluster, ends: tuple[RedisServer, RedisServer], api: Api
) -> None:
    """The lease is renewed where its keys are. While they are on two nodes it is unknown, and held
    again later. Who tries once is told, and who waits gets it."""
    source, target = ends
    lease = api.acquire(redis_lock("job", ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    waiting(1)

    cluster.migrating(KEY, target)
    api.extend(lease)
    with pytest.raises(LockUnavailable):
        api.start(lambda: api.acquire(redis_lock("job"), wait=0)).result(PATIENCE)
    cluster.call(source, "MIGRATE", "127.0.0.1", target.tcp_port, CLOCK, 0, 5000)
    with pytest.raises(LockUnavailable, match="TryAgainError"):
        api.extend(lease)
    assert lease.state == LeaseState.UNKNOWN

    assert cluster.migrate_keys(KEY, source, target) > 0
    api.extend(lease)  # asked there, behind ASKING
    assert lease.state == LeaseState.HELD
    # What needs one key only finds it: the old node says where, and the new one is told to look.
    assert api.holder(redis_lock("job")).fencing_token == lease.fencing_token
    late = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    cluster.migrated(KEY, target)

    api.extend(lease)
    assert lease.state == LeaseState.HELD
    assert not waiter.done()
    api.release(lease)
    tokens = [lease.fencing_token]
    for who in (waiter, late):
        following = who.result(PATIENCE)
        tokens.append(following.fencing_token)
        api.release(following)
    assert tokens == sorted(set(tokens))


FAULT = "Redis Cluster: the move of a slot is over"


@pytest.mark.recovery
def test_how_long_it_takes(
    cluster: RedisCluster,
    ends: tuple[RedisServer, RedisServer],
    api: Api,
    recovery: Recovery,
) -> None:
    """Until the new node renews the lease and hands the lock on."""
    source, target = ends
    lease = api.acquire(redis_lock("job", ttl=60))
    waiter = api.start(lambda: api.acquire(redis_lock("job", ttl=60), wait=PATIENCE))
    waiting(1)
    cluster.migrating(KEY, target)
    cluster.call(source, "MIGRATE", "127.0.0.1", target.tcp_port, CLOCK, 0, 5000)
    assert not extended(api, lease)
    cluster.migrate_keys(KEY, source, target)
    cluster.migrated(KEY, target)
    recovery.begins()
    eventually(lambda: extended(api, lease))
    recovery.done(FAULT, "a lease is renewed", within=3)
    recovery.begins()
    api.release(lease)
    following = waiter.result(PATIENCE)
    recovery.done(FAULT, "a waiter has the lock that is released", within=5)
    api.release(following)


def test_a_release_while_it_moves(
    cluster: RedisCluster, ends: tuple[RedisServer, RedisServer], api: Api
) -> None:
    """The block is left without an error; the lock is released when its slot has settled."""
    source, target = ends

    def body(lease: object) -> None:
        cluster.migrating(KEY, target)

    api.enter(redis_lock("job", ttl=600), body)
    assert cluster.call(source, "EXISTS", KEY) == 1
    cluster.migrate_keys(KEY, source, target)
    cluster.migrated(KEY, target)
    eventually(lambda: not cluster.call(target, "EXISTS", KEY))


def test_a_free_lock_whose_slot_moves(
    cluster: RedisCluster, ends: tuple[RedisServer, RedisServer], api: Api
) -> None:
    """If no key is left at the old node, the new one is asked, and decides when it can."""
    _, target = ends
    cluster.migrating(KEY, target)
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    with pytest.raises(LockUnavailable):
        api.acquire(redis_lock("job"), wait=0)
    cluster.migrated(KEY, target)
    lease = waiter.result(PATIENCE)
    assert cluster.call(target, "EXISTS", KEY) == 1
    api.release(lease)


def test_a_slot_that_moves_as_a_whole(
    cluster: RedisCluster, ends: tuple[RedisServer, RedisServer], api: Api
) -> None:
    """Holder, waiters in order and fencing tokens come along, and no renewal is refused."""
    _, target = ends
    lease = api.acquire(redis_lock("job", ttl=60))
    waiters = []
    for number in (1, 2):
        waiters.append(api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE)))
        waiting(number)

    over = threading.Event()
    moving = api.start(lambda: move(cluster, target, over))
    longest = 0.0
    while not over.is_set():
        began = time.monotonic()
        api.extend(lease)
        longest = max(longest, time.monotonic() - began)
    if not moving.result(PATIENCE):
        pytest.skip("this server moves the keys of a slot one by one")

    assert cluster.owner(KEY) is target
    api.extend(lease)
    assert lease.state == LeaseState.HELD
    assert longest < PATIENCE / 2
    tokens = [lease.fencing_token]
    api.release(lease)
    for waiter in waiters:
        following = waiter.result(PATIENCE)
        tokens.append(following.fencing_token)
        api.release(following)
    assert tokens == sorted(set(tokens))


def move(cluster: RedisCluster, target: RedisServer, over: threading.Event) -> bool:
    """Whether the server has moved the slot."""
    try:
        cluster.move_at_once(KEY, target)
        return True
    except ResponseError as error:
        if "subcommand" not in str(error):
            raise
        return False
    finally:
        over.set()
