"""What a read-write lock owes, sync and async, on a real Redis."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core import signing
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseState,
    LockError,
    LockReentered,
    ReadWriteLock,
    Semaphore,
    redis_lock,
)
from django_redislock.lease.export import SALT
from tests.contract.api import Api, elsewhere, queued
from tests.waiting import PATIENCE

KEY = "redislock:{catalogue}"
QUEUE, HOLDERS = f"{KEY}:queue", f"{KEY}:holders"
KEYS = KEY, QUEUE, HOLDERS, f"{KEY}:waiters"


def read(**options: object) -> redis_lock:
    return ReadWriteLock("catalogue", **options).read()  # type: ignore[arg-type]


def write(**options: object) -> redis_lock:
    return ReadWriteLock("catalogue", **options).write()  # type: ignore[arg-type]


def test_many_read(api: Api, redis: Redis) -> None:
    """Many read at a time, and meanwhile nobody writes."""
    leases = [elsewhere(api, read()).result(PATIENCE) for _ in range(5)]
    assert redis.zcard(KEY) == 5
    assert elsewhere(api, write()).result(PATIENCE) is None
    for lease in leases[1:]:
        api.release(lease)
    assert elsewhere(api, write()).result(PATIENCE) is None
    api.release(leases[0])
    api.release(elsewhere(api, write()).result(PATIENCE))
    assert not redis.exists(*KEYS)


def test_a_waiting_writer_keeps_new_readers_out(api: Api, redis: Redis) -> None:
    """Or readers that come one after the other would keep the writer out without end."""
    reader = api.acquire(read())
    writer = elsewhere(api, write(), wait=None)
    queued(redis, "catalogue", 1)
    assert elsewhere(api, read()).result(PATIENCE) is None
    api.release(reader)
    lease = writer.result(PATIENCE)
    assert lease.fencing_token > reader.fencing_token
    api.release(lease)


def test_readers_behind_a_writer_go_in_together(api: Api, redis: Redis) -> None:
    """They go in when the writer releases, in the same step; the next writer waits for all of
    them."""
    writer = api.acquire(write())
    readers = []
    for number in range(3):
        readers.append(elsewhere(api, read(), wait=None))
        queued(redis, "catalogue", number + 1)
    next_writer = elsewhere(api, write(), wait=None)
    queued(redis, "catalogue", 4)
    late = elsewhere(api, read(), wait=None)
    queued(redis, "catalogue", 5)
    api.release(writer)
    assert redis.zcard(KEY) == 3
    leases = [reader.result(PATIENCE) for reader in readers]
    assert redis.zcard(QUEUE) == 2
    for lease in leases:
        assert not next_writer.done()
        api.release(lease)
    lease = next_writer.result(PATIENCE)
    assert not late.done()
    api.release(lease)
    api.release(late.result(PATIENCE))
    assert not redis.exists(*KEYS)


def test_a_writer_that_gives_up_lets_readers_pass(api: Api, redis: Redis) -> None:
    """Readers that have waited only behind the writer go in."""
    reader = api.acquire(read())
    writer = elsewhere(api, write(), wait=1)
    queued(redis, "catalogue", 1)
    behind = elsewhere(api, read(), wait=None)
    queued(redis, "catalogue", 2)
    assert writer.result(PATIENCE) is None
    assert redis.zcard(KEY) == 2, "in the same step"
    api.release(behind.result(PATIENCE))
    api.release(reader)


def test_downgrade(api: Api, redis: Redis) -> None:
    """Nobody writes in between, and readers that wait go in."""
    lease = api.acquire(write())
    reader = elsewhere(api, read(), wait=None)
    queued(redis, "catalogue", 1)
    writer = elsewhere(api, write(), wait=None)
    queued(redis, "catalogue", 2)
    api.downgrade(lease)
    assert redis.zcard(KEY) == 2, "in the same step"
    beside = reader.result(PATIENCE)
    assert redis.zcard(KEY) == 2
    assert not writer.done()
    api.downgrade(lease)
    api.extend(lease)
    api.release(beside)
    assert not writer.done()
    api.release(lease)
    api.release(writer.result(PATIENCE))
    assert not redis.exists(*KEYS)


@pytest.mark.parametrize("use", ["block", "decorator"])
def test_for_what(api: Api, use: str) -> None:
    """Whoever forgets to say whether to read or to write is told so."""
    lock: Any = ReadWriteLock("catalogue")
    with pytest.raises(
        TypeError, match=r"^write ReadWriteLock\(…\)\.read\(\) or Read.*write\(\)$"
    ):
        if use == "block":
            api.enter(lock, lambda _: None)
        else:
            lock(print)


def test_what_can_be_downgraded(api: Api, redis: Redis) -> None:
    """Only a lease of a read-write lock that is held can be downgraded."""
    mutex = api.acquire(redis_lock("mutex"))
    with pytest.raises(TypeError, match=r"ReadWriteLock\(…\)\.write\(\)"):
        api.downgrade(mutex)
    api.release(mutex)
    lost = api.acquire(write(renew=False))
    redis.delete(KEY)
    with pytest.raises(LeaseLost):
        api.downgrade(lost)
    assert lost.state == LeaseState.LOST


def changed(text: str, **said: Any) -> str:
    """A text that another lease would have exported."""
    return signing.dumps({**signing.loads(text, salt=SALT), **said}, salt=SALT)


def test_a_semaphore_of_the_same_name(api: Api, redis: Redis) -> None:
    """Neither gets in beside the other, also if there would be room; the error names both."""
    places = Semaphore("catalogue", 5)
    for lock in (read(), write()):
        lease = api.acquire(lock)
        for wait in (0, PATIENCE):
            with pytest.raises(LockError, match=r"a read-write lock, and can't be a semaphore"):
                elsewhere(api, places, wait=wait).result(PATIENCE)
        assert not redis.exists(QUEUE)
        api.release(lease)
    lease = api.acquire(places)
    for lock in (read(), write()):
        with pytest.raises(LockError, match=r"a semaphore, and can't be a read-write lock"):
            elsewhere(api, lock, wait=PATIENCE).result(PATIENCE)
    text = lease.export()
    with pytest.raises(LockError, match=r"a semaphore, and can't be a read-write lock"):
        api.restore(changed(text, kind="read"))
    lease = api.restore(text)
    api.release(lease)
    api.release(api.acquire(read()))
    assert not redis.exists(*KEYS)


def test_export_and_restore(api: Api, redis: Redis) -> None:
    """A writer stays a writer, and a reader stays a reader."""
    writer = api.restore(api.acquire(write()).export())
    assert elsewhere(api, read()).result(PATIENCE) is None
    api.downgrade(writer)
    reader = api.restore(writer.export())
    beside = elsewhere(api, read()).result(PATIENCE)
    assert redis.zcard(KEY) == 2
    api.release(beside)
    api.release(reader)
    assert not redis.exists(*KEYS)


def test_it_decorates_functions(api: Api, redis: Redis) -> None:
    """Both of its locks decorate functions."""
    catalogue = ReadWriteLock(lambda shop: f"catalogue:{shop}")

    def body(shop: int) -> bytes:
        (record,) = redis.hvals(f"redislock:{{catalogue:{shop}}}:holders")
        kind: bytes = record.rpartition(b"\t")[2].partition(b"|")[0]
        return kind

    assert api.call(catalogue.read()(api.function(body)), 7) == b"read"
    assert api.call(catalogue.write()(api.function(body)), 7) == b"write"


def test_contention(api: Api, redis: Redis) -> None:
    """Readers and writers come and go: a writer is alone, and all of them come in at last."""
    inside = {"read": 0, "write": 0}
    changing = threading.Lock()
    most = 0

    def section(kind: str) -> None:
        nonlocal most
        with changing:
            inside[kind] += 1
            most = max(most, inside["read"])
            assert inside["write"] == 0 or (inside["write"] == 1 and inside["read"] == 0), inside
        with changing:
            inside[kind] -= 1

    def worker(number: int) -> None:
        for turn in range(8):
            kind = "write" if (number + turn) % 4 == 0 else "read"
            lock = write(wait=PATIENCE) if kind == "write" else read(wait=PATIENCE)
            api.enter(lock, lambda _, kind=kind: section(kind))

    for future in [api.start(lambda number=number: worker(number)) for number in range(8)]:
        future.result(PATIENCE)
    assert not redis.exists(*KEYS)


# The same thread or task asks again.


class TestAgain:
    def test_it_is_refused(self) -> None:
        """Also a reader can't read again: a writer may wait in between, and then the reader waits
        for itself."""
        for outer, inner in ((read, read), (write, read), (write, write)):
            with outer(), pytest.raises(LockReentered, match="reentrant=True"), inner():
                pass

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_a_reader_becomes_no_writer(self, reentrant: bool) -> None:
        """A reader that asks to write gets an error at once, which says what to write."""
        with (
            read(),
            pytest.raises(LockReentered, match=r"take \.write\(\) from the beginning"),
            write(reentrant=reentrant),
        ):
            pass

    def test_it_counts(self, redis: Redis) -> None:
        """With reentrant=True there is one lease, which is released by the outermost block."""
        for outer, inner in ((read, read), (write, read), (write, write)):
            with outer() as lease:
                with inner(reentrant=True) as again:
                    assert again is lease
                assert redis.zcard(KEY) == 1
            assert not redis.exists(*KEYS)

    def test_a_downgraded_writer_is_a_reader(self) -> None:
        """It writes no more."""
        with write() as lease:
            lease.downgrade()
            with pytest.raises(LockReentered, match="take"), write(reentrant=True):
                pass
            with read(reentrant=True) as again:
                assert again is lease

    def test_an_inner_block_downgrades_nothing(self, api: Api, redis: Redis) -> None:
        """The outer block writes, and counts on being alone."""
        with write() as lease:
            for inner in (write, read):
                with inner(reentrant=True), pytest.raises(LockError, match="outermost"):
                    api.downgrade(lease)
            assert elsewhere(api, read()).result(PATIENCE) is None
            api.downgrade(lease)
            with read(reentrant=True):
                api.downgrade(lease)  # once more, of a reader: that takes nothing from anybody
            api.release(elsewhere(api, read()).result(PATIENCE))
        assert not redis.exists(*KEYS)

    def test_others_do_not_count(self) -> None:
        """Each thread has its own lease, also when another one has taken one since."""
        with read() as mine:
            with ThreadPoolExecutor(1) as thread:
                theirs = thread.submit(read().acquire).result(PATIENCE)
            with read(reentrant=True) as again:
                assert again is mine
            theirs.release()
