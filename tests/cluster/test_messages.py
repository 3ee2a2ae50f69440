"""Wake-ups on a cluster: each goes to the node that has the lock, and to nobody else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings
from redis.crc import key_slot

from devtools.redis_cluster import RedisCluster
from devtools.redis_server import RedisServer
from django_redislock import MultiLock, redis_lock
from django_redislock.primitives.keys import Keys
from django_redislock.transport.inbox import KEEP, Inbox, Process
from django_redislock.transport.server import every, server_of
from tests.caches import cluster as caches
from tests.cluster.looking import killed_waiters, name_at, waiting
from tests.contract.api import Api
from tests.processes import Worker
from tests.test_doctor import documented
from tests.waiting import PATIENCE, eventually

Begin = Callable[..., Worker]

KEY = "redislock:{job}"


@pytest.fixture(autouse=True)
def _sharded_pubsub(cluster: RedisCluster) -> None:
    version = cluster.call(cluster.nodes[0], "INFO", "server")["redis_version"]
    if int(version.partition(".")[0]) < 7:
        pytest.skip(f"Redis {version} has no sharded pub/sub")


def listeners(cluster: RedisCluster, key: str = KEY) -> dict[str, int]:
    """How many listen for a lock at the node that has it, by channel."""
    with cluster.ask(cluster.owner(key)) as node:
        channels = node.execute_command("PUBSUB", "SHARDCHANNELS", f"{key}:inbox:*")
        pairs = node.execute_command("PUBSUB", "SHARDNUMSUB", *channels) if channels else []
    return dict(zip(pairs[::2], map(int, pairs[1::2]), strict=True))


def listen(cluster: RedisCluster, number: int, key: str = KEY) -> None:
    """Wait until so many processes listen for a lock, and have said so in its queue."""

    def they_do() -> bool:
        with cluster.ask(cluster.owner(key)) as node:
            says = [its.split("|") for its in node.hvals(f"{key}:waiters")]
        # Beside a waiter for several names stands a field with their keys.
        entries = [its for its in says if len(its) > 2 and its[2] not in ("", "-")]
        return len(entries) >= number and sum(listeners(cluster, key).values()) >= number

    eventually(they_do)


def said_so(cluster: RedisCluster) -> None:
    """Wait until the first waiter asks for the lock from now on, and says where it listens."""
    began = time.time()

    def it_does() -> bool:
        with cluster.ask(cluster.owner(KEY)) as node:
            seen, _, inbox, *_ = node.hget(f"{KEY}:waiters", waiters(cluster)[0]).split("|")
        return int(seen) > began * 1e6 and inbox != "-"

    eventually(it_does)


def waiters(cluster: RedisCluster, key: str = KEY) -> list[str]:
    """The tokens of those that wait, in order."""
    found: list[str] = cluster.call(cluster.owner(key), "ZRANGE", f"{key}:queue", 0, -1)
    return found


def holder(cluster: RedisCluster, key: str = KEY) -> str:
    """The token at a lock."""
    return str(cluster.call(cluster.owner(key), "GET", key) or "")[:32]


def calls(cluster: RedisCluster, command: str) -> dict[int | None, int]:
    """How often each node has run a command."""
    return {
        node.tcp_port: cluster.call(node, "INFO", "commandstats")
        .get(f"cmdstat_{command}", {})
        .get("calls", 0)
        for node in cluster.nodes
    }


def test_one_node_is_told(
    cluster: RedisCluster, begin: Begin, api: Api, learned: list[str]
) -> None:
    """Another process hands the lock over by one message, at the node that has the lock."""
    worker = begin(1, "hold", "600")
    worker.holds()
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    listen(cluster, 1)
    for node in cluster.nodes:
        cluster.call(node, "CONFIG", "RESETSTAT")
    worker.go_on()
    api.release(waiter.result(PATIENCE))
    assert learned == ["message"]
    published = calls(cluster, "spublish")
    assert published.pop(cluster.owner(KEY).tcp_port) == 1
    assert set(published.values()) == {0}
    assert set(calls(cluster, "publish").values()) == {0}


def test_a_killed_waiter_costs_nothing(cluster: RedisCluster, begin: Begin) -> None:
    """The node that has the lock knows that nobody listens: the release itself passes it over."""
    lease = redis_lock("job", ttl=600).acquire()
    assert lease is not None
    killed = [begin(node, "wait") for node in range(3)]
    listen(cluster, 3)
    before = waiters(cluster)
    living = begin(1, "wait")
    listen(cluster, 4)
    (its_token,) = set(waiters(cluster)).difference(before)
    for worker in killed:
        worker.kill()
    eventually(lambda: sum(listeners(cluster).values()) == 1)
    lease.release()
    assert holder(cluster) == its_token
    living.holds()


def test_forty_killed_waiters(cluster: RedisCluster, begin: Begin) -> None:
    """They cost nothing either."""
    lease = redis_lock("job", ttl=600).acquire()
    assert lease is not None
    killed_waiters(cluster, lease, 40, inbox="dead")
    waiter = begin(1, "wait")
    listen(cluster, 1)
    last = waiters(cluster)[-1]
    lease.release()
    assert holder(cluster) == last
    waiter.holds()


def test_many_names(cluster: RedisCluster, begin: Begin, api: Api, learned: list[str]) -> None:
    """A process waits for locks on all nodes at once, and each wake-up reaches it."""
    names = [name_at(cluster, node) for node in cluster.nodes]
    leases = [api.acquire(redis_lock(name, ttl=600)) for name in names]
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.cluster.settings",
        "REDISLOCK_TEST_NODES": cluster.urls[0],
    }
    started = [Worker(f"{__name__}:takes", name, env=env) for name in names]
    try:
        for name in names:
            listen(cluster, 1, f"redislock:{{{name}}}")
        learned.clear()
        waiting_here = [
            api.start(lambda n=name: api.acquire(redis_lock(n), wait=PATIENCE)) for name in names
        ]
        for name in names:
            waiting(2, name)
            listen(cluster, 2, f"redislock:{{{name}}}")
        for lease, worker, waiter in zip(leases, started, waiting_here, strict=True):
            api.release(lease)
            assert worker.says() == "holding"
            worker.go_on()
            api.release(waiter.result(PATIENCE))
    finally:
        for worker in started:
            worker.close()
    assert learned == ["message"] * len(names)


def takes(name: str) -> None:
    """A program: take a lock, and give it back when it is told to."""
    from tests.worker import say, told

    with redis_lock(name, wait=None, ttl=600):
        say("holding")
        told()


def test_several_names_at_once(
    cluster: RedisCluster, begin: Begin, api: Api, learned: list[str]
) -> None:
    """A MultiLock over several nodes is woken by the node that has the name it waits for."""
    other = name_at(
        cluster, next(node for node in cluster.nodes if node is not cluster.owner(KEY))
    )
    worker = begin(0, "hold", "600")
    worker.holds()
    waiter = api.start(lambda: api.acquire(MultiLock(["job", other]), wait=PATIENCE))
    listen(cluster, 1)
    worker.go_on()
    lease = waiter.result(PATIENCE)
    assert learned == ["message"]
    api.release(lease)


@pytest.fixture
def moved(cluster: RedisCluster) -> Iterator[Callable[[], RedisServer]]:
    """Moves the slot of the lock to another node. Returns that node."""
    source = cluster.owner(KEY)
    target = next(node for node in cluster.nodes if node is not source)

    def move() -> RedisServer:
        cluster.move(KEY, target)
        return target

    yield move
    for node in cluster.nodes:
        cluster.call(node, "FLUSHALL")
    if cluster.owner(KEY) is not source:
        cluster.move(KEY, source)


def test_a_slot_that_moves(
    cluster: RedisCluster,
    begin: Begin,
    api: Api,
    learned: list[str],
    moved: Callable[[], RedisServer],
) -> None:
    """The waiters of this process listen at its new node then, and keep their order."""
    worker = begin(1, "hold", "600")
    worker.holds()
    first = api.start(lambda: api.acquire(redis_lock("job", ttl=600), wait=PATIENCE))
    listen(cluster, 1)
    second = api.start(lambda: api.acquire(redis_lock("job", ttl=600), wait=PATIENCE))
    waiting(2)
    moved()
    eventually(lambda: listeners(cluster))
    said_so(cluster)
    worker.go_on()
    lease = first.result(PATIENCE)
    assert not second.done()
    api.release(lease)
    api.release(second.result(PATIENCE))
    assert learned == ["message", "process"]


def test_channels_that_nobody_needs(
    cluster: RedisCluster, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left after a while: a process may wait for thousands of names."""
    monkeypatch.setattr("django_redislock.transport.inbox.KEEP", 0.05)
    assert KEEP > 1
    lease = api.acquire(redis_lock("job"))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    listen(cluster, 1)
    api.release(lease)
    api.release(waiter.result(PATIENCE))
    boxes = [box for box in every(Inbox) if box.started]
    numbers = itertools.count()

    def is_left() -> bool:
        # What wakes the thread that leaves them is, here, that somebody begins to wait.
        if next(numbers) % 20 == 0:
            for box in boxes:
                box._call()
        return not listeners(cluster)

    eventually(is_left)
    # And they are made anew for the next one that waits.
    lease = api.acquire(redis_lock("job"))
    waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))
    listen(cluster, 1)
    api.release(lease)
    api.release(waiter.result(PATIENCE))


@pytest.mark.parametrize("refused", ["-ssubscribe", "-spublish -ssubscribe"])
def test_a_user_without_sharded_pubsub(cluster: RedisCluster, api: Api, refused: str) -> None:
    """All messages go to all nodes then, as before Redis 7."""
    rule = documented("locks")
    for node in cluster.nodes:
        cluster.call(node, "ACL", "SETUSER", *rule[2:], *refused.split())
    url = cluster.urls[0].replace("redis://", "redis://locks:SECRET@")
    with override_settings(CACHES=caches([url])):
        held = api.acquire(redis_lock("job", ttl=600))
        waiter = api.start(lambda: api.acquire(redis_lock("job"), wait=PATIENCE))

        def published() -> bool:
            with cluster.ask(cluster.owner(KEY)) as node:
                says: list[Any] = node.hvals(f"{KEY}:waiters")
            return any(":inbox:" in its for its in says)

        eventually(published)
        assert not server_of("default").kept(Process, "redislock").sharded
        api.release(held)
        api.release(waiter.result(PATIENCE))


def test_the_channel_is_in_the_slot_of_the_lock() -> None:
    """Else no node would take it from a script."""
    for keys in (
        Keys.of("redislock", "job|:1"),
        Keys.verbatim("redislock", b"lock.foo"),
        Keys.verbatim("redislock", b"a{tag}b"),
    ):
        assert key_slot(keys.inbox("1").encode()) == key_slot(keys.lock.encode())
        assert keys.inbox("") == keys.queue.removesuffix("queue") + "inbox:"
