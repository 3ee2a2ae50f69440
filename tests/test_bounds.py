"""A script keeps Redis from everybody else while it runs: none deals with more than about a
thousand entries, however many there are. Commands are counted here, and entries, not time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from devtools.luacheck import SCRIPTS
from django_redislock import MultiLock, ReadWriteLock, Semaphore, redis_lock
from django_redislock.inspection import Inspector
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives import scripts
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.waiting import DEAF
from django_redislock.transport.server import server_of
from tests.contract.api import Api
from tests.contract.conftest import no_signs_of_life  # noqa: F401  # a fixture
from tests.waiting import PATIENCE, eventually

MOST = 1000
"""Entries for one script, as in lua/lock.lua."""
MANY = 3 * MOST
EACH = 8
"""Commands for one entry, at most."""
KEYS = Keys.of("redislock", "job")

pytestmark = pytest.mark.usefixtures("no_signs_of_life")


class Counted:
    """Counts what the server does in the scripts of a block."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def _calls(self) -> tuple[int, int]:
        stats = self._redis.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): of["calls"] for name, of in stats.items()}
        scripts = sum(calls.get(name, 0) for name in ("eval", "evalsha"))
        return scripts, sum(calls.values())

    def __enter__(self) -> Counted:
        self._before = self._calls()
        return self

    def __exit__(self, *exception: object) -> None:
        scripts, commands = self._calls()
        self.scripts = scripts - self._before[0]
        self.commands = commands - self._before[1]


@pytest.fixture
def counted(redis: Redis) -> Callable[[], Counted]:
    for name in SCRIPTS:  # a script that the server does not know is sent twice
        redis.script_load(scripts.load(name).source)
    server_of("default").busy.clear()  # by another test
    return lambda: Counted(redis)


def crowd(
    redis: Redis, number: int, keys: Keys = KEYS, *, inbox: str = "gone", wants: str = ""
) -> None:
    """So many wait who came first; those at the inbox "gone" are dead. The mark of the lock says
    that somebody waits."""
    seconds, micros = redis.time()
    now = seconds * 1_000_000 + micros
    tokens = [f"{one:032}" for one in range(number)]
    redis.zadd(keys.queue, {token: now - 2 * number + one for one, token in enumerate(tokens)})
    says = f"{now}|30000|{inbox}|owner|label{wants}"
    redis.hset(keys.waiters, mapping=dict.fromkeys(tokens, says))
    if redis.type(keys.lock) == b"string":
        redis.setrange(keys.lock, len(tokens[0]), "+")


def test_a_release_before_dead_waiters(redis: Redis, counted: Any) -> None:
    """It passes over so many of them; who comes next passes over the others, and has the lock."""
    lease = redis_lock("job").acquire()
    crowd(redis, MANY)
    with counted() as release:
        lease.release()
    assert release.scripts == 2, "the short one does nothing"
    assert release.commands < EACH * MOST
    assert redis.zcard(KEYS.queue) == MANY - MOST
    assert not redis.exists(KEYS.lock)
    with counted() as acquire:
        lease = redis_lock("job", wait=0).acquire()
    assert lease is not None
    assert acquire.commands < EACH * MOST * acquire.scripts
    assert acquire.scripts == 2, "the release has found waiters, so no short one is tried"
    lease.release()


@pytest.mark.parametrize("lock", [redis_lock("job"), Semaphore("job", 1), MultiLock(["job"])])
def test_a_live_waiter_behind_dead_ones(api: Api, redis: Redis, lock: Any) -> None:
    """It has the lock without anybody's help, and nobody barges in before it."""
    lease = api.acquire(lock)
    wants = "\tsemaphore|1" if isinstance(lock, Semaphore) else ""
    crowd(redis, MANY, wants=wants)
    waiter = api.start(lambda: api.acquire(lock, wait=PATIENCE))
    eventually(lambda: not redis.zrange(KEYS.queue, -1, -1)[0].startswith(b"0000"))
    api.release(lease)
    assert api.start(lambda: api.acquire(lock, wait=0)).result(PATIENCE) is None
    api.release(waiter.result(PATIENCE))
    assert not redis.exists(KEYS.lock, KEYS.queue, KEYS.waiters)


def test_stopped_waiters_keep_their_order(redis: Redis, counted: Any) -> None:
    """Of waiters that can be reached but were not seen lately the first has the lock, as far as a
    script can see: the others are told, and come back."""
    lease = redis_lock("job").acquire()
    crowd(redis, MANY, inbox=DEAF)
    first = redis.zrange(KEYS.queue, 0, 0)[0]
    says = redis.hget(KEYS.waiters, first).split(b"|", 1)
    long_ago = b"%d|%s" % (int(says[0]) - 60_000_000, says[1])
    redis.hset(KEYS.waiters, mapping=dict.fromkeys(redis.hkeys(KEYS.waiters), long_ago))
    with counted() as release:
        lease.release()
    assert release.commands < EACH * MOST
    assert redis.get(KEYS.lock).startswith(first)


def test_several_names(redis: Redis, counted: Any) -> None:
    """Of which each has dead waiters."""
    other = Keys.of("redislock", "other")
    for keys in (KEYS, other):
        crowd(redis, MANY, keys)
    with counted() as acquire:
        lease = MultiLock(["job", "other"]).acquire(wait=0)
    assert lease is not None
    assert acquire.commands < EACH * MOST * acquire.scripts
    lease.release()


def test_expired_holders(redis: Redis, counted: Any) -> None:
    """They hold no place, also while they are there yet."""
    keep = Semaphore("job", 2).acquire()
    seconds, micros = redis.time()
    now = seconds * 1_000_000 + micros
    tokens = [f"{one:032}" for one in range(MANY)]
    redis.zadd(
        KEYS.lock, {token: now // 1000 - 2 * MANY + one for one, token in enumerate(tokens)}
    )
    says = f"|{now - 60_000_000}|{now - 60_000_000}|30000|owner|label\tsemaphore|2"
    redis.hset(KEYS.holders, mapping={token: token + says for token in tokens})
    with counted() as acquire:
        second = Semaphore("job", 2, wait=0).acquire()
    assert second is not None
    assert acquire.scripts == 2, "the short one does nothing"
    assert acquire.commands < MOST
    assert redis.zcard(KEYS.lock) == MANY - MOST + 2
    assert redis.hlen(KEYS.holders) == MANY - MOST + 2
    assert len(Semaphore("job", 2).holders()) == 2
    second.release()
    keep.release()
    assert Semaphore("job", 2).holders() == []
    left = redis.pttl(KEYS.lock)
    assert left == -2 or 0 < left <= 30_000, "the others are removed, or go with the key"


def test_readers_behind_a_writer(redis: Redis, counted: Any) -> None:
    """So many go in at a time."""
    writer = ReadWriteLock("job").write().acquire()
    crowd(redis, MANY, inbox=DEAF, wants="\tread|1000000000")
    with counted() as release:
        writer.release()
    assert redis.zcard(KEYS.lock) == MOST
    assert redis.zcard(KEYS.queue) == MANY - MOST
    assert release.commands < 3 * EACH * MOST
    reader = ReadWriteLock("job", wait=0).read().acquire()
    assert reader is not None
    assert redis.zcard(KEYS.lock) == MANY + 1
    reader.release()


def test_names_whose_leases_have_ended(redis: Redis, counted: Any) -> None:
    """They leave the index little by little, when others are written down."""
    redis.zadd(KEYS.index, {f"old {number}": number for number in range(MANY)})
    for number in range(1, 4):
        lease = redis_lock(f"new {number}").acquire()
        watchdog(server_of("default")).write_down()
        assert redis.zcount(KEYS.index, 0, MANY) == MANY - number * MOST
        lease.release()


def test_waiters_are_looked_at_in_pages(redis: Redis, counted: Any) -> None:
    """All of them, each once and in order."""
    crowd(redis, MANY)
    with counted() as look:
        found = Inspector().waiters("job", 10 * MANY)
    assert len(found) == MANY
    assert [one.position for one in found] == list(range(MANY))
    assert look.scripts > MANY / MOST
    assert look.commands < 2 * MOST * look.scripts
    assert len(Inspector().waiters("job", 10)) == 10


def test_the_index_is_read_in_pages(redis: Redis, counted: Any) -> None:
    """All of it, also the leases that should have ended, and in the order of their ends."""
    lease = redis_lock("job").acquire()
    seconds, _ = redis.time()
    lately = (seconds - 30) * 1000  # those of long ago are removed before the first page is read
    old = {f"redislock:{{old {number}}}": lately + number for number in range(MANY)}
    redis.zadd(KEYS.index, old)
    later = {
        f"redislock:{{new {number}}}": seconds * 1000 + 60_000 + number // 400
        for number in range(MANY)
    }
    redis.zadd(KEYS.index, later)
    with counted() as look:
        found = Inspector()._index_names()
    assert len(found) == len(set(found)) == 2 * MANY + 1
    assert found[: MANY + 1] == [*(f"old {number}" for number in range(MANY)), "job"]
    assert look.scripts > 2 * MANY / MOST
    assert [lock.name for lock in Inspector().all()] == ["job"]
    assert [lock.name for lock in Inspector().page(limit=None).items] == ["job"]
    assert [lock.name for lock in Inspector().page(limit=10 * MANY).items] == ["job"]
    lease.release()
