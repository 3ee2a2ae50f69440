"""Locks that several hold: in the settings, as decorators, renewed; and what stays a mutex."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis import Redis

from django_redislock import (
    Lease,
    LeaseState,
    LockError,
    LockReentered,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    deduplicate,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.lease.lifetime import Lifetime
from django_redislock.lease.register import register
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.waiting import PATIENCE, eventually


def configured(**locks: Any) -> override_settings:
    return override_settings(REDISLOCK={"LOCKS": locks})


def kind_of(redis: Redis, name: str) -> str:
    """What is at its key: of a lock that several hold, what the first of them wants."""
    key = f"redislock:{{{name}}}"
    if redis.type(key) == b"string":
        return "mutex"
    record: bytes = redis.hvals(f"{key}:holders")[0]
    return record.rpartition(b"\t")[2].decode()


class TestSettings:
    def test_a_semaphore(self, redis: Redis) -> None:
        """redis_lock is one where the settings say so, without touching the code."""
        with configured(job={"KIND": "semaphore", "LIMIT": 2}):
            with redis_lock("job"), redis_lock("job"):
                assert kind_of(redis, "job") == "semaphore|2"
                assert redis.zcard("redislock:{job}") == 2

            @redis_lock("{name}")
            def work(name: str) -> str:
                return kind_of(redis, name)

            assert work("job") == "semaphore|2"
            assert work("other") == "mutex"

    def test_a_pattern(self, redis: Redis) -> None:
        """As other settings: the exact name beats it."""
        with configured(
            **{"export:*": {"KIND": "semaphore", "LIMIT": 2}, "export:1": {"LIMIT": 5}}
        ):
            with redis_lock("export:7"):
                assert kind_of(redis, "export:7") == "semaphore|2"
            with redis_lock("export:1"):
                assert kind_of(redis, "export:1") == "mutex"

    def test_reading_and_writing(self, redis: Redis) -> None:
        """Each is a kind of its own."""
        with configured(job={"KIND": "read"}):
            with redis_lock("job"):
                assert kind_of(redis, "job").startswith("read|")
        with configured(job={"KIND": "write"}), redis_lock("job"):
            assert kind_of(redis, "job").startswith("write|")

    def test_without_a_limit(self) -> None:
        """There is none by default: it is told what to write."""
        with (
            configured(job={"KIND": "semaphore"}),
            pytest.raises(ImproperlyConfigured, match=r"job'\]: a semaphore needs a limit.*LIMIT"),
        ):
            redis_lock("job").acquire()
        with pytest.raises(ValueError, match=r"Semaphore\(name, 3\)"):
            Semaphore("job").acquire()

    def test_the_limit_of_the_settings(self, redis: Redis) -> None:
        """For a Semaphore that says none; an argument beats it."""
        with configured(job={"LIMIT": 7}):
            with Semaphore("job"):
                assert kind_of(redis, "job") == "semaphore|7"
            with Semaphore("job", 3):
                assert kind_of(redis, "job") == "semaphore|3"

    @pytest.mark.parametrize("limit", [0, -1, True, "3", 2.0, 10**9])
    def test_a_wrong_limit(self, limit: Any) -> None:
        """It is named where the lock is made."""
        with pytest.raises((TypeError, ValueError), match="limit must be"):
            Semaphore("job", limit)

    @pytest.mark.parametrize(
        "run",
        [
            lambda look: once("job")(look)(),
            lambda look: deduplicate("job", ttl=60)(look)(),
            lambda look: single_flight("job")(look)(),
            lambda look: _with(cache.lock("job"), look),  # type: ignore[attr-defined]
        ],
        ids=["once", "deduplicate", "single_flight", "cache.lock"],
    )
    def test_what_stays_a_mutex(self, redis: Redis, run: Callable[[Any], Any]) -> None:
        """What reads the mutex's value, whatever the settings say of its name."""
        found: list[bytes] = []

        def look() -> int:
            locks = [*redis.scan_iter(match="redislock:*{*job}"), *redis.scan_iter(match="*job*")]
            found.extend(redis.type(key) for key in locks if not key.endswith(b":tail"))
            return 1

        with configured(**{"*": {"KIND": "semaphore", "LIMIT": 2}}):
            run(look)
        assert b"string" in found
        assert b"zset" not in found


def _with(lock: Any, look: Callable[[], Any]) -> Any:
    with lock:
        return look()


class TestLeases:
    def test_all_of_a_process_are_renewed(self, redis: Redis) -> None:
        """Also when several are on one key; in one request."""
        leases = [Semaphore("job", 3, ttl=0.6).acquire() for _ in range(3)]
        ends = redis.zrange("redislock:{job}", 0, 0, withscores=True)[0][1]
        eventually(lambda: redis.zrange("redislock:{job}", 0, 0, withscores=True)[0][1] > ends)
        for lease in leases:
            assert lease.state == LeaseState.HELD
            lease.release()
        assert register(server_of("default")).held("redislock:{job}") == []

    def test_each_thread_finds_its_own(self) -> None:
        """Many threads enter and leave one key all the time; each counts on the lease it has."""
        lock = ReadWriteLock("job", reentrant=True)

        def work() -> None:
            for _ in range(40):
                with lock.read() as outer, lock.read() as inner:
                    assert inner is outer

        with ThreadPoolExecutor(6) as threads:
            for done in [threads.submit(work) for _ in range(6)]:
                done.result(PATIENCE)
        assert register(server_of("default")).held("redislock:{job}") == []
        assert register(server_of("default"))._tokens.get("redislock:{job}") is None

    def test_many_cost_a_thread_no_more_than_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever enters and leaves looks at none of the others' leases."""
        watched = register(server_of("default"))
        me, asked = threading.current_thread(), []

        def ask(token: str) -> None:
            if threading.current_thread() is me:  # the watchdog looks at all
                asked.append(token)

        class Leases(dict[str, Any]):
            def get(self, token: str, default: Any = None) -> Any:
                ask(token)
                return super().get(token, default)

        lock = ReadWriteLock("job").read()
        entered, leave = threading.Barrier(4), threading.Event()

        def work() -> None:
            with lock:
                entered.wait(PATIENCE)
                leave.wait(PATIENCE)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        entered.wait(PATIENCE)
        others = [lease.token for lease in watched.held("redislock:{job}")]
        assert len(others) == 3
        try:
            with monkeypatch.context() as patch:
                patch.setattr(watched, "_lifetimes", Leases(watched.lifetimes))
                patch.setattr(Lifetime, "lost", property(lambda its: ask(its.claim.token)))
                with lock as lease:
                    assert watched.held("redislock:{job}", me) == [lease]
            assert lease.token in asked
            assert not set(asked) & set(others)
        finally:
            leave.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert lock._blocks == {}
        assert watched.held("redislock:{job}") == []

    def test_three_threads_at_one_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two forget their leases at once, so that nobody is there, and a third one comes in
        between: it is not forgotten with them."""
        watched = register(server_of("default"))
        third: list[Lease | None] = []

        class Places(dict[Any, dict[str, None]]):
            def pop(self, place: Any, *default: Any) -> Any:
                if not third and place == "redislock:{job}":
                    super().pop(place)  # the other one is faster
                    third.append(None)
                    threads = ThreadPoolExecutor(1)
                    third.append(threads.submit(Semaphore("job", 2).acquire).result())
                    threads.shutdown()
                return super().pop(place, *default)

        lease = Semaphore("job", 2).acquire()
        assert isinstance(lease, Lease)
        with monkeypatch.context() as patch:
            patch.setattr(watched, "_tokens", Places(watched._tokens))
            lease.release()
            assert third[1] is not None
            assert watched.held("redislock:{job}") == [third[1]]
            third[1].release()
            assert watched._tokens == {}

    def test_a_semaphore_of_one(self) -> None:
        """It is held by this thread as a whole, so asking again would be waiting for itself."""
        with Semaphore("job", 1), pytest.raises(LockReentered, match="reentrant=True"):
            Semaphore("job", 1).acquire()

    def test_of_other_kinds(self) -> None:
        """A lease of another kind on the same name does not count, and the server tells."""
        with Semaphore("job", 2):
            with pytest.raises(LockError, match="has a type that such a lock does not use"):
                redis_lock("job", reentrant=True).acquire()

    @pytest.mark.parametrize(
        ("held", "asked", "words"),
        [
            (Semaphore("job", 2), redis_lock("job"), "a semaphore, by"),
            (Semaphore("job", 2), ReadWriteLock("job").read(), "a semaphore, by"),
            (ReadWriteLock("job").read(), redis_lock("job"), "a read-write lock, for reading, by"),
            (ReadWriteLock("job").write(), MultiLock(["a", "job"]), "for writing, by"),
            (redis_lock("job"), Semaphore("job", 2), "a mutex, by"),
        ],
        ids=["mutex", "read", "reader", "multi", "semaphore"],
    )
    def test_the_error_says_who_holds_it_as_what(
        self, held: redis_lock, asked: redis_lock, words: str
    ) -> None:
        """One name for two kinds of locks is a mistake, and the holder shows where."""
        with (
            held as lease,
            pytest.raises(LockError, match=f"'job' is held as .*{words}") as caught,
        ):
            asked.acquire(wait=0)
        assert lease.owner in str(caught.value)
        assert lease.label in str(caught.value)
        assert type(caught.value) is LockError

    def test_a_downgrade_is_for_reading_from_then_on(self, redis: Redis, monkeypatch: Any) -> None:
        """Also if it can't be reached for: who believes to read can do no harm."""
        lease = ReadWriteLock("job").write().acquire()
        assert isinstance(lease, Lease)

        async def away(*_args: Any, **_options: Any) -> Any:
            raise LockUnavailable("away", passing=False)

        with monkeypatch.context() as patch:
            patch.setattr(SyncPort, "script", away)
            with pytest.raises(LockUnavailable):
                lease.downgrade()
        assert lease._claim.primitive.kind == "read"
        lease.downgrade()
        assert kind_of(redis, "job").startswith("read|")
        lease.release()


class TestRepr:
    def test_it_is_readable(self) -> None:
        """With what was given."""
        assert repr(Semaphore("job", 3)) == "<Semaphore 'job', kind='semaphore', limit=3>"
        assert repr(ReadWriteLock("job")) == "<ReadWriteLock 'job'>"
        assert repr(ReadWriteLock("job").read()) == "<redis_lock 'job', kind='read'>"
