"""`redislock list`, `show` and `clear` of locks that several hold."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from django_redislock import Lease, LeaseRevoked, LockUnavailable, ReadWriteLock, Semaphore
from django_redislock.inspection import Inspector
from django_redislock.primitives import permits
from django_redislock.signals import lock_cleared
from tests.operations.calling import call, granted
from tests.waiting import eventually


@pytest.fixture
def exports(redis: Redis) -> Lease:
    """A semaphore of three, held by us, by a process that died, and by one that is silent."""
    granted(redis, "exports", places=3, owner="web3:1:x")
    granted(redis, "exports", places=3, owner="web4:1:x", silent=25)
    lease = Semaphore("exports", 3, label="here").acquire()
    assert lease is not None
    return lease


def owners(name: str) -> list[str]:
    lock = call("show", name, "--json").json["lock"]
    return [holder["owner"].partition(":")[0] for holder in lock["holders"]]


class TestList:
    def test_one_line(self, exports: Lease) -> None:
        """The line says how many hold it, names the holder in the worst state, and has that
        state."""
        out = call("list").out
        assert "exports  semaphore  stale  3 of 3: web3 · 1 · x " in out
        assert "1 lock: 1 stale, 0 unknown, 0 held" in out
        (lock,) = call("list", "--host", "web4:", "--json").json["items"]
        assert (lock["kind"], lock["holding"], lock["limit"]) == ("semaphore", 3, 3)
        assert lock["why"].startswith("1 of 3 holders: its process has shown no sign of life")

    def test_readers_and_a_writer(self) -> None:
        """The list tells readers from a writer."""
        with ReadWriteLock("catalogue").read():
            assert "1 reader: " in call("list").out
        with ReadWriteLock("catalogue").write():
            assert "writer: " in call("list").out
        assert call("list", "--json").json["items"] == []


class TestShow:
    def test_all_holders(self, exports: Lease) -> None:
        """Each holder is shown with its state and the rest of its lease."""
        out = call("show", "exports").out
        assert "Kind:            semaphore" in out
        assert "Held by:         3 of 3" in out
        for text in ("web3 · 1 · x", "web4 · 1 · x", str(exports.fencing_token), "here"):
            assert text in out
        assert exports.token not in out

    def test_what_waiters_want(self, redis: Redis) -> None:
        """A waiter wants to read or to write."""
        catalogue = ReadWriteLock("catalogue", wait=None)
        lease = catalogue.write().acquire()
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(lambda: catalogue.write().acquire())
            eventually(lambda: redis.zcard("redislock:{catalogue}:queue") == 1)
            second = threads.submit(lambda: catalogue.read().acquire())
            eventually(lambda: redis.zcard("redislock:{catalogue}:queue") == 2)
            out = call("show", "catalogue").out
            waiters = call("show", "catalogue", "--json").json["waiters"]
            lease.release()
            for waiter in (first, second):
                got = waiter.result()
                got.release()
            assert out.index("to write, ") < out.index("to read, ")
            assert [waiter["kind"] for waiter in waiters] == ["write", "read"]
            assert "Kind:            write lock" in out

    def test_its_past(self, redis: Redis) -> None:
        """The past has released, cleared and expired holders, even if nobody has looked since."""
        with Semaphore("exports", 3, label="released"):
            eventually(lambda: redis.zscore("redislock:index", "redislock:{exports}"))
            time.sleep(0.1)  # it has been held for a second
        Semaphore("exports", 3, label="cleared", renew=False).acquire()
        call("clear", "exports", "--yes", "--reason", "it hangs")
        Semaphore("exports", 3, label="expired", renew=False).acquire()
        redis.delete("redislock:{exports}")
        past = call("show", "exports", "--json").json["past"]["holders"]
        assert [one["label"] for one in past] == ["expired", "cleared", "released"]
        assert [one["ending"] for one in past] == ["expired", "cleared", "released"]
        assert "it hangs" in past[1]["why"]
        with Semaphore("exports", 3):
            pass
        past = call("show", "exports", "--json").json["past"]["holders"]
        assert [one["ending"] for one in past] == ["expired", "cleared", "released"]


class TestClear:
    def test_all(self, exports: Lease) -> None:
        """All holders lose it, and learn why."""
        done = call("clear", "exports", "--yes", "--reason", "it hangs")
        assert "and 2 more" in done.out
        assert call("list", "--json").json["items"] == []
        with pytest.raises(LeaseRevoked, match="it hangs"):
            exports.extend()

    def test_stale_ones(self, exports: Lease) -> None:
        """The other holders keep their places."""
        assert call("clear", "--stale", "--yes", "--reason", "dead").code == 0
        assert sorted(owners("exports")) == sorted(["web4", exports.owner.partition(":")[0]])
        exports.extend()

    def test_those_of_a_host(self, exports: Lease) -> None:
        """--host chooses holders by the beginning of their owner."""
        dry = call("clear", "exports", "--host", "web4:")
        assert "--host=web4:" in dry.out
        assert len(owners("exports")) == 3
        assert call("clear", "exports", "--host", "web4:", "--yes", "--reason", "x").code == 0
        assert "web4" not in owners("exports")
        exports.extend()

    def test_as_of(self, exports: Lease) -> None:
        """A later holder keeps its place."""
        before = call("clear", "exports", "--json").json["as_of"]
        with Semaphore("exports", 4) as later:
            command = ("clear", "exports", f"--as-of={before}", "--yes", "--reason", "x")
            assert call(*command).code == 0
            assert len(owners("exports")) == 1
            later.extend()
            assert "changed hands" in call(*command).out
        with pytest.raises(LeaseRevoked):
            exports.extend()

    def test_more_than_are_shown(
        self, exports: Lease, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All holders at the time of the first look lose it; later ones keep their places."""
        monkeypatch.setattr(permits, "SHOWN", 1)
        later: list[Lease | None] = []

        def come(**_: object) -> None:
            if not later:
                with ThreadPoolExecutor(1) as another:
                    lock = Semaphore("exports", 9, ttl=7200)  # is seen last
                    later.append(another.submit(lock.acquire, wait=0).result())

        lock_cleared.connect(come)
        try:
            done = call("clear", "exports", "--yes", "--reason", "it hangs")
        finally:
            lock_cleared.disconnect(come)
        assert done.code == 0
        assert "and 2 more.\n1 of 1 lock cleared." in done.out
        (lease,) = later
        assert redis.zrange("redislock:{exports}", 0, -1) == [lease.token.encode()]
        lease.release()
        with pytest.raises(LeaseRevoked, match="it hangs"):
            exports.extend()

    def test_a_server_that_is_away_in_the_middle(
        self, exports: Lease, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The output says that some were cleared, and that the others are unknown."""
        monkeypatch.setattr(permits, "SHOWN", 1)

        def away(*_: object) -> None:
            raise LockUnavailable("Redis is away")

        lock_cleared.connect(
            lambda **_: monkeypatch.setattr(Inspector, "held", away), weak=False, dispatch_uid="x"
        )
        try:
            done = call("clear", "exports", "--yes", "--reason", "it hangs")
        finally:
            lock_cleared.disconnect(dispatch_uid="x")
        assert done.code == 69
        assert "may have been cleared, or not: Redis is away" in done.out
