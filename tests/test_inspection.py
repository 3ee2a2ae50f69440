"""inspection.py: what is held, who waits, what is stale, and clearing what was seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    Semaphore,
    TimestampLock,
    redis_lock,
)
from django_redislock.base import people, tokens
from django_redislock.base.people import Holder
from django_redislock.inspection import Ending, Inspector, Kind, LockInfo, State
from django_redislock.inspection.listing import ORDERS
from django_redislock.inspection.reading import decide, foreign
from django_redislock.lease.register import PRESENCE
from django_redislock.lease.watchdog import watchdog
from django_redislock.primitives import permits
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.operations.calling import granted
from tests.processes import Worker
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

INDEX = "redislock:index"
NONE = dict.fromkeys(State, 0)


@pytest.fixture
def inspector() -> Inspector:
    return Inspector()


def get(inspector: Inspector, name: str) -> LockInfo:
    lock = inspector.get(name)
    assert lock is not None
    return lock


class TestOne:
    def test_what_is_held(self, inspector: Inspector) -> None:
        """A lock has a holder, its times, and a value by which it is cleared and which is not
        printed."""
        with redis_lock("job", ttl=60, label="here") as lease:
            lock = get(inspector, "job")
        assert (lock.name, lock.using, lock.kind) == ("job", "default", Kind.MUTEX)
        assert (lock.state, lock.why, lock.waiters) == (State.HELD, "", 0)
        assert (lock.holder.owner, lock.holder.label) == (lease.owner, "here")
        assert lock.holder.fencing_token == lease.fencing_token
        assert lock.ttl == 60
        assert 50 < lock.holder.remaining <= 60
        assert lock.seen.decode() == lease.token
        assert lease.token not in repr(lock)

    def test_who_waits(self, inspector: Inspector) -> None:
        """Waiters are listed in order, with what they say of themselves."""
        lease = redis_lock("job").acquire()
        with ThreadPoolExecutor(2) as threads:
            waiting = []
            for number in (1, 2):
                lock = redis_lock("job", label=f"number {number}", wait=PATIENCE)
                waiting.append(threads.submit(lock.acquire))
                eventually(lambda number=number: len(inspector.waiters("job")) == number)
            first, second = inspector.waiters("job")
            assert [(w.position, w.label) for w in (first, second)] == [
                (0, "number 1"),
                (1, "number 2"),
            ]
            assert 0 <= second.waited <= first.waited < PATIENCE
            assert first.silent < PATIENCE
            assert first.owner.startswith(lease.owner.rpartition(":")[0])
            assert len(inspector.waiters("job", limit=1)) == 1
            assert get(inspector, "job").waiters == 2
            lease.release()
            for lease in (waiting[0].result(PATIENCE), None):
                (lease or waiting[1].result(PATIENCE)).release()
        assert inspector.waiters("job") == []


class TestClear:
    def test_what_was_seen(self, inspector: Inspector) -> None:
        """The lock is taken from its holder, who learns by whom and why."""
        lease = redis_lock("job").acquire()
        assert inspector.clear(get(inspector, "job"), by="Ada", reason="stuck")
        assert inspector.get("job") is None
        with pytest.raises(LeaseRevoked, match=r"cleared by Ada \(stuck\)"):
            lease.extend()

    def test_what_changed_hands(self, inspector: Inspector) -> None:
        """The next holder keeps the lock."""
        with redis_lock("job"):
            seen = get(inspector, "job")
        with redis_lock("job") as lease:
            assert not inspector.clear(seen, by="Ada", reason="stuck")
            lease.extend()

    def test_the_next_waiter_has_it(self, inspector: Inspector) -> None:
        """The next waiter gets the lock at once."""
        lease = redis_lock("job").acquire()
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(redis_lock("job", wait=PATIENCE).acquire)
            eventually(lambda: inspector.waiters("job"))
            inspector.clear(get(inspector, "job"), by="Ada", reason="stuck")
            waiting.result(PATIENCE).release()
        with pytest.raises(LeaseLost):
            lease.release()

    def test_a_strangers(self, redis: Redis, inspector: Inspector) -> None:
        """A value of others is deleted if it is still the value that was seen."""
        redis.set("redislock:{job}", "mine")
        seen = get(inspector, "job")
        redis.set("redislock:{job}", "another's")
        assert not inspector.clear(seen, by="Ada", reason="old")
        assert inspector.clear(get(inspector, "job"), by="Ada", reason="old")
        assert not redis.exists("redislock:{job}")

    def test_clearings_are_counted(self, inspector: Inspector, redis: Redis) -> None:
        """By whomever; a count that can't be written or read stops nobody."""
        assert inspector.clearings() == 0
        for number in (1, 2):
            redis_lock("job", renew=False).acquire()
            redis_lock("job").clear(reason="it hangs", by="Ada")
            assert inspector.clearings() == number
        redis.delete("redislock:clearings")
        redis.lpush("redislock:clearings", "x")
        redis_lock("job", renew=False).acquire()
        assert redis_lock("job").clear(reason="it hangs", by="Ada") is not None
        assert inspector.clearings() == 0


class TestPages:
    @pytest.fixture
    def many(self, redis: Redis) -> list[str]:
        """Locks whose leases end one after the other."""
        names = [f"job:{number:03d}" for number in range(30)]
        for number, name in enumerate(names):
            granted(redis, name, ttl=2000 + 10 * number, process=tokens.NO_PROCESS)
        return names

    def in_pages(self, inspector: Inspector, limit: int) -> list[str]:
        """The names of `many`, read in pages of this size, beyond the last one."""
        seen = []
        for offset in range(0, 40, limit):
            page = inspector.page(offset=offset, limit=limit)
            assert page.total == 30
            seen += [lock.name for lock in page.items]
        return seen

    def test_pages(self, inspector: Inspector, many: list[str]) -> None:
        """The pages together have all locks, in order."""
        assert self.in_pages(inspector, 10) == many
        assert [lock.name for lock in inspector.page(limit=None).items] == many
        assert inspector.page(limit=0).items == []

    def test_only_the_page_is_read(
        self, inspector: Inspector, many: list[str], redis: Redis, monkeypatch: Any
    ) -> None:
        """Of many locks, only those of the page are read, and the urgent ones."""
        monkeypatch.setattr("django_redislock.inspection.inspector.READ_IN_FULL", 20)

        def gets() -> int:
            return int(redis.info("commandstats")["cmdstat_get"]["calls"])

        inspector.page(limit=1)
        before = gets()
        inspector.page(limit=10)
        assert gets() - before == 10
        before = gets()
        assert inspector.page(limit=0).counts.states[State.HELD] == 30
        assert gets() == before

    def test_many_locks(
        self, inspector: Inspector, many: list[str], redis: Redis, monkeypatch: Any
    ) -> None:
        """Of many locks, the urgent ones come first, whenever their leases end; the pages together
        have each lock once, and the counts are about all."""
        monkeypatch.setattr("django_redislock.inspection.inspector.READ_IN_FULL", 20)
        monkeypatch.setattr("django_redislock.inspection.inspector.ENTRIES_AT_ONCE", 7)
        granted(redis, "dead", ttl=9000)
        granted(redis, "dead too", ttl=2105, process="f" * 8)
        redis.persist("redislock:{job:017}")  # nobody renews it, and nothing ends it
        redis.zadd("redislock:{job:029}:queue", {"0" * 32: 1})
        redis.delete("redislock:{job:003}")
        redis.set("redislock:{job:005}", "overwritten", px=9000)
        urgent = {"dead", "dead too", "job:017"}
        boring = [name for name in many if name not in {"job:003", "job:017", "job:029"}]
        for limit in (1, 4, 10, 50):
            seen = []
            for offset in range(0, 40, limit):
                page = inspector.page(offset=offset, limit=limit)
                seen += [lock.name for lock in page.items]
                assert page.counts.states == {**NONE, State.HELD: 28, State.STALE: 3}
                assert (page.total, page.counts.contended, page.counts.waiters) == (31, 1, 1)
            assert set(seen[:3]) == urgent
            assert seen[3] == "job:029"
            assert sorted(seen[4:]) == boring
        assert {lock.name for lock in inspector.stale()} == urgent

    def test_many_shared_locks(
        self, inspector: Inspector, many: list[str], redis: Redis, monkeypatch: Any
    ) -> None:
        """A semaphore with a holder that is dead or unknown is urgent, too; one that nobody
        holds is not counted."""
        monkeypatch.setattr("django_redislock.inspection.inspector.READ_IN_FULL", 20)
        for name in ("places", "rooms"):
            granted(redis, name, process=tokens.NO_PROCESS, places=3)
        assert inspector.page(limit=1).items[0].name == many[0]
        redis.zadd("redislock:{rooms}", {"f" * 32: int(time.time() + 900) * 1000})
        (first,) = inspector.page(limit=1).items
        assert (first.name, first.state) == ("rooms", State.BROKEN)
        granted(redis, "places", places=3)
        second = inspector.page(limit=2).items[1]
        assert (second.name, second.holding, second.state) == ("places", 2, State.STALE)
        for token in redis.zrange("redislock:{rooms}", 0, -1):
            redis.zadd("redislock:{rooms}", {token: 1})
        assert inspector.page(limit=0).total == 31

    def test_renewals_move_nothing(self, inspector: Inspector, redis: Redis) -> None:
        """The order of urgency: the worst state, most waiters, held for longest. When a lease ends
        does not matter."""
        for name in ("b", "a", "c"):
            granted(redis, name, ttl=1000, process=tokens.NO_PROCESS)
        granted(redis, "stale", ttl=9000)
        redis.zadd("redislock:{c}:queue", {"0" * 32: 1})
        names = ["stale", "c", "b", "a"]
        assert [lock.name for lock in inspector.page().items] == names
        redis.pexpire("redislock:{a}", 500_000)
        redis.zadd(INDEX, {"redislock:{a}": 1}, xx=True)
        assert [lock.name for lock in inspector.page().items] == names

    def test_filters(self, inspector: Inspector, many: list[str], redis: Redis) -> None:
        """By pattern, state and host; the total counts what is left."""
        granted(redis, "mail")
        with redis_lock("mine") as lease:
            assert [lock.name for lock in inspector.page(pattern="job:00*").items] == many[:10]
            assert inspector.page(pattern="job:00*", limit=3).total == 10
            stale = inspector.page(states=[State.STALE])
            assert ([lock.name for lock in stale.items], stale.total) == (["mail"], 1)
            host = lease.owner.partition(":")[0]
            assert [lock.name for lock in inspector.page(host=host).items] == ["mine"]
            assert inspector.page(host="web3").total == 31

    @pytest.mark.parametrize(
        ("order", "first"),
        [
            ("remaining", "job:000"),
            ("name", "job:000"),
            ("held", "job:000"),
            ("waiters", "zzz"),
            ("owner", "job:000"),
            ("state", "zzz"),
            ("urgency", "zzz"),
        ],
    )
    def test_orders(
        self, inspector: Inspector, many: list[str], redis: Redis, order: str, first: str
    ) -> None:
        """Each order works; for waiters, the largest number comes first."""
        granted(redis, "zzz", ttl=9000)
        redis.zadd("redislock:{zzz}:queue", {"0" * 32: 1})
        assert set(ORDERS) >= {order}
        assert inspector.page(order=order).items[0].name == first

    def test_an_order_that_is_none(self, inspector: Inspector) -> None:
        """The error says which orders there are."""
        with pytest.raises(ValueError, match="order must be one of urgency, remaining"):
            inspector.page(order="size")

    def test_the_index_is_only_read(
        self, inspector: Inspector, many: list[str], redis: Redis
    ) -> None:
        """Locks that are gone are neither shown nor counted, and stay in the index."""
        redis.delete("redislock:{job:003}")
        redis.zadd(INDEX, {f"redislock:{{ended:{number}}}": 1 for number in range(700)})
        before = redis.zrange(INDEX, 0, -1, withscores=True)
        names = [name for name in many if name != "job:003"]
        page = inspector.page()
        assert ([lock.name for lock in page.items], page.total) == (names, 29)
        assert [lock.name for lock in inspector.page(order="name").items] == names
        assert inspector.counts().total == 29
        get(inspector, "job:005")
        assert redis.zrange(INDEX, 0, -1, withscores=True) == before

    def test_a_lock_that_lost_its_ttl(
        self, inspector: Inspector, many: list[str], redis: Redis
    ) -> None:
        """A lock that is held beyond its time in the index is shown first."""
        redis.persist("redislock:{job:007}")
        ended = {"redislock:{job:007}": 1, "redislock:{ended}": 2, "redislock:{ended:too}": 3}
        redis.zadd(INDEX, ended)
        names = ["job:007", *(name for name in many if name != "job:007")]
        assert self.in_pages(inspector, 4) == names
        assert [lock.name for lock in inspector.page(limit=None).items] == names
        assert [lock.name for lock in inspector.page(offset=2, limit=None).items] == names[2:]

    def test_more_than_a_batch(self, inspector: Inspector, redis: Redis) -> None:
        """A thousand and one locks, in three requests."""
        for number in range(1001):
            granted(redis, f"job:{number}", process=tokens.NO_PROCESS)
        assert len(list(inspector.all())) == 1001
        assert inspector.counts().total == 1001

    def test_counts(self, inspector: Inspector, many: list[str], redis: Redis) -> None:
        """Locks are counted by state, and so are those that are waited for."""
        granted(redis, "stale")
        redis.zadd("redislock:{stale}:queue", {"0" * 32: 1, "1" * 32: 2})
        counts = inspector.counts()
        assert (counts.total, counts.contended, counts.waiters) == (31, 1, 2)
        assert counts.states == {**NONE, State.HELD: 30, State.STALE: 1}


class TestDiscover:
    def test_what_is_not_in_the_index(self, inspector: Inspector, redis: Redis) -> None:
        """Values of others below our prefix are found, and locks that the index has lost."""
        redis.set("redislock:{plain}", "a token of redis-py")
        redis.set("redislock:{old}", str(time.time() - 60))
        redis.set("redislock:{old:future}", f"{time.time() + 60:.3f}")
        redis.set("redislock:{job}:record", "no lock")
        redis.set("other:{plain}", "no lock of ours")
        redis.rpush("redislock:{list}", "no string")
        granted(redis, "lost", process=tokens.NO_PROCESS)
        redis.zrem(INDEX, "redislock:{lost}")
        with redis_lock("known"), Semaphore("several", 2):
            assert inspector.counts().total == 2  # this writes them down
            assert redis.zrem(INDEX, "redislock:{several}")
            found = {lock.name: lock for lock in inspector.discover()}
        redis.delete("other:{plain}")
        assert set(found) == {"plain", "old", "old:future", "lost", "several"}
        assert found["several"].kind == Kind.SEMAPHORE
        assert (found["plain"].kind, found["plain"].state) == (Kind.FOREIGN, State.STALE)
        assert (found["old"].kind, found["old"].state) == (Kind.TIMESTAMP, State.STALE)
        assert (found["old:future"].kind, found["old:future"].state) == (
            Kind.TIMESTAMP,
            State.HELD,
        )
        assert redis.zscore(INDEX, "lost") is None

    def test_it_ends(self, inspector: Inspector, redis: Redis) -> None:
        """The search ends after all keys, or after about as many as its limit."""
        with redis.pipeline() as pipeline:
            for number in range(20_000):
                pipeline.set(f"noise:{number}", 1, ex=60)
            pipeline.execute()

        def scans() -> int:
            return int(redis.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"])

        before = scans()
        inspector.discover(limit=1_000_000)
        assert 20 <= scans() - before <= 30
        before = scans()
        inspector.discover(limit=3000)
        assert scans() - before == 3
        redis.delete(*(f"noise:{number}" for number in range(20_000)))

    def test_a_prefix_with_a_pattern(self, settings: Any, redis: Redis) -> None:
        """Special characters in a prefix are escaped."""
        settings.REDISLOCK = {"PREFIX": "redislock*"}
        redis.set("redislock*:{a}", "x")
        redis.set("redislock-:{b}", "x")
        assert [lock.name for lock in Inspector().discover()] == ["a"]


def seen(**more: Any) -> Holder:
    holder = {"owner": "host:1:x", "label": "", "fencing_token": 1, "acquired_at": None}
    return Holder(**{**holder, "held": 900.0, "remaining": 2700.0, **more})


class TestStale:
    @pytest.mark.parametrize(
        ("holder", "independent", "left", "state"),
        [
            # Its process lives.
            (seen(), False, PRESENCE, State.HELD),
            (seen(remaining=None), False, PRESENCE, State.HELD),
            # It has been silent for a while: two signs of life are missing.
            (seen(), False, 5.0, State.UNKNOWN),
            (seen(), False, None, State.STALE),
            # It was acquired, or renewed, just now.
            (seen(held=5.0), False, None, State.HELD),
            (seen(remaining=3590.0), False, None, State.HELD),
            (seen(remaining=3575.0), False, None, State.UNKNOWN),
            # Handed to a waiter, who has to confirm it yet.
            (seen(held=0.5, remaining=0.5), False, None, State.HELD),
            # Nobody has to keep it alive.
            (seen(), True, None, State.HELD),
            (seen(remaining=None), True, None, State.STALE),
            (seen(remaining=None), False, None, State.STALE),
        ],
    )
    def test_a_lock_of_ours(
        self, holder: Holder, independent: bool, left: float | None, state: State
    ) -> None:
        """The state depends on the TTL, the last renewal and the process's last sign of life."""
        decided, why = decide(holder, 3600.0, independent, left)
        assert decided == state
        assert bool(why) == (state != State.HELD)

    @pytest.mark.parametrize(
        ("value", "remaining", "kind", "state"),
        [
            (b"1700000000", None, Kind.TIMESTAMP, State.STALE),
            (b"1700000000.123", None, Kind.TIMESTAMP, State.STALE),
            (b"1700000000", 10.0, Kind.TIMESTAMP, State.STALE),
            (b"1900000000.5", None, Kind.TIMESTAMP, State.HELD),
            (b"token", None, Kind.FOREIGN, State.STALE),
            (b"token", 10.0, Kind.FOREIGN, State.HELD),
            (b"42", 10.0, Kind.FOREIGN, State.HELD),
            (b"nan", 10.0, Kind.FOREIGN, State.HELD),
            (b"inf", None, Kind.FOREIGN, State.STALE),
            (b"\xff", 10.0, Kind.FOREIGN, State.HELD),
        ],
    )
    def test_a_foreign_value(
        self, value: bytes, remaining: float | None, kind: Kind, state: State
    ) -> None:
        """The state depends on the TTL, or on the time that the value is."""
        found = foreign(value, remaining, 1_800_000_000.0)
        assert found[:2] == (kind, state)
        assert bool(found[2]) == (state != State.HELD)

    def test_a_killed_process(
        self, inspector: Inspector, redis: Redis, start: Callable[..., Worker]
    ) -> None:
        """A long lease is stale once its process's last sign of life has expired."""
        worker = start("tests.test_inspection:hold")
        worker.holds()
        (presence,) = eventually(lambda: redis.keys("redislock:process:*"))
        assert get(inspector, "long").state == State.HELD
        eventually(lambda: redis.zscore(INDEX, "redislock:{long}"))  # it is a second old
        worker.process.kill()
        worker.process.wait(PATIENCE)
        # As if it had been acquired, and had shown its last sign of life, some time ago.
        head, acquired, *rest = redis.get("redislock:{long}").split(b"|")
        earlier = str(int(acquired or head[33:]) - 600_000_000).encode()
        value = b"|".join([head, earlier, *rest])
        redis.set("redislock:{long}", value, px=3_000_000)
        redis.pexpire(presence, 5000)
        lock = get(inspector, "long")
        assert (lock.state, lock.why[:40]) == (
            State.UNKNOWN,
            "its process has shown no sign of life fo",
        )
        redis.delete(presence)
        assert [lock.name for lock in inspector.stale()] == ["long"]
        assert inspector.clear(get(inspector, "long"), by="Ada", reason="its process is dead")

    def test_a_sign_of_life(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that holds leases has one key, which it writes again and again."""
        watched = watchdog(server_of("default"))
        watched._show_at, watched._next = 0.0, float("inf")  # it has shown none lately
        monkeypatch.setattr("django_redislock.lease.watchdog.PRESENCE_EVERY", 0.1)
        key = f"redislock:process:{tokens.process}"
        with redis_lock("one"), redis_lock("two"):
            for _ in range(3):
                eventually(lambda: redis.exists(key))
                assert redis.keys("redislock:process:*") == [key.encode()]
                assert 0 < redis.pttl(key) <= PRESENCE * 1000
                redis.delete(key)

    def test_a_child_is_another_process(self, redis: Redis) -> None:
        """A forked child has its own process number."""
        from multiprocessing import get_context

        context = get_context("fork")
        parent, child = context.Pipe()
        process = context.Process(target=tell_token, args=(child,))
        process.start()
        assert parent.recv()[:8] != tokens.process
        process.join(PATIENCE)

    def test_the_drop_in(self, inspector: Inspector, redis: Redis) -> None:
        """A lock with a timeout belongs to no process; one without a timeout does."""
        from django_redislock.client import Lock

        with Lock(redis, "a", timeout=60), Lock(redis, "b"):
            assert redis.get("a").decode().startswith(tokens.NO_PROCESS)
            assert redis.get("b").decode().startswith(tokens.process)


def hold() -> None:
    """For a worker: hold a lock for an hour."""
    lease = redis_lock("long", ttl=3600).acquire()
    print("holding", lease.fencing_token, flush=True)  # noqa: T201
    threading.Event().wait()


def tell_token(pipe: Any) -> None:
    pipe.send(tokens.new())


class TestCacheLocks:
    def test_they_are_listed_by_their_keys(self, redis: Redis) -> None:
        """Locks of the drop-in are seen, waited for and cleared like others."""
        from django_redislock.client import Lock

        inspector = Inspector(cache_locks=True)
        with redis_lock("job"):
            assert Lock(redis, ":1:import", timeout=60).acquire()
            (found,) = inspector.page().items
            assert (found.name, found.kind, found.state) == (":1:import", Kind.MUTEX, State.HELD)
            assert [lock.name for lock in Inspector().page().items] == ["job"]
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(Lock(redis, ":1:import", timeout=60).acquire)
                eventually(lambda: inspector.waiters(":1:import"))
                assert inspector.clear(get(inspector, ":1:import"), by="Ada", reason="stuck")
                assert waiting.result(PATIENCE)
            assert inspector.discover() == []
            inspector.clear(get(inspector, ":1:import"), by="Ada", reason="stuck")
            assert not redis.exists(":1:import")

    def test_their_past(self, redis: Redis) -> None:
        """The past is kept as for other locks; setting the timeout anew does not change it."""
        from django_redislock.client import Lock

        inspector = Inspector(cache_locks=True)
        lock = Lock(redis, ":1:import", timeout=60)
        for expires in (False, True):
            assert lock.acquire()
            assert len(inspector.past(":1:import").holders) == expires
            assert inspector.counts().total == 1  # this writes it down
            lock.extend(100)
            if expires:
                redis.delete(":1:import")
            else:
                lock.release()
        last, first = inspector.past(":1:import").holders
        assert (last.ending, first.ending) == (Ending.EXPIRED, Ending.RELEASED)
        assert last.owner == first.owner == people.owner(people.holder())
        assert last.fencing_token > first.fencing_token
        assert Inspector().past("import").holders == []

    def test_one_with_a_timeout_is_written_down(self, redis: Redis) -> None:
        """When it is a second old, although nothing renews it; not if it was released before."""
        from django_redislock.client import Lock

        index = "redislock:key:index"
        short, long = (Lock(redis, f":1:{name}", timeout=60) for name in ("short", "long"))
        for lock in (short, long):
            assert lock.acquire()
        short.release()
        eventually(lambda: redis.zscore(index, ":1:long"))
        assert redis.zscore(index, ":1:short") is None
        long.release()
        assert redis.zscore(index, ":1:long") is None

    def test_one_without_a_timeout_needs_its_process(self, redis: Redis) -> None:
        """A lock with a timeout is held without its process."""
        from django_redislock.client import Lock

        inspector = Inspector(cache_locks=True)
        for key, timeout in ((":1:with", 3600), (":1:without", None)):
            lock = Lock(redis, key, timeout=timeout)
            assert lock.acquire()
            token, fence, acquired, _ttl, *rest = redis.get(key).split(b"|")
            earlier = str(int(acquired or fence) - 600_000_000).encode()
            value = b"|".join([token, fence, earlier, b"3600000", *rest])
            redis.set(key, value, px=3_000_000)
            redis.delete(*redis.keys("redislock:key:process:*") or ["-"])
            state = get(inspector, key).state
            assert state == (State.HELD if timeout else State.STALE)
            redis.delete(key)


class TestServer:
    def test_the_alias_of_the_settings(self, settings: Any) -> None:
        """USING of the settings is the default."""
        settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
        settings.REDISLOCK = {"USING": "locks"}
        with held_elsewhere("job"):
            assert get(Inspector(), "job").using == "locks"


class TestPlaces:
    """Semaphores and read-write locks whose data at the server is incomplete."""

    def test_a_record_that_says_no_kind(self, inspector: Inspector, redis: Redis) -> None:
        """Such a lock is listed, and so are the others."""
        lease = Semaphore("places", 2).acquire()
        with redis_lock("job"):
            record = redis.hget("redislock:{places}:holders", lease.token)
            for odd in (b"", b"\tsemaphore", b"\tsemaphore|x", b"\tother|1", b"\t\xff"):
                text = record.partition(b"\t")[0] + odd
                redis.hset("redislock:{places}:holders", lease.token, text)
                lock = get(inspector, "places")
                assert (lock.kind, lock.limit, lock.holder.owner) == (
                    Kind.FOREIGN,
                    None,
                    lease.owner,
                )
                assert {one.name for one in inspector.page().items} == {"places", "job"}
            assert inspector.clear(lock, by="Ada", reason="odd")
        assert inspector.get("places") is None

    def test_lost_records(self, inspector: Inspector, redis: Redis) -> None:
        """The holder is unknown, and an operator can clear the lock."""
        lease = Semaphore("places", 2).acquire()
        redis.delete("redislock:{places}:holders")
        lock = get(inspector, "places")
        assert (lock.kind, lock.state, lock.holding) == (Kind.FOREIGN, State.BROKEN, 1)
        assert lock.holder.owner is None
        assert 0 < (lock.holder.remaining or 0) <= 30
        assert "is lost" in lock.why
        assert [one.name for one in inspector.page().items] == ["places"]
        assert inspector.clear(lock, by="Ada", reason="lost")
        assert inspector.get("places") is None
        with pytest.raises(LeaseRevoked, match="Ada"):
            lease.extend()

    def test_one_lost_record(self, inspector: Inspector, redis: Redis) -> None:
        """The other holders are known."""
        lease = Semaphore("places", 2, ttl=20).acquire()
        Semaphore("places", 2, ttl=30).acquire()
        redis.hdel("redislock:{places}:holders", lease.token)
        lock = get(inspector, "places")
        assert (lock.kind, lock.limit, lock.holding) == (Kind.SEMAPHORE, 2, 2)
        assert [one.state for one in lock.holders] == [State.BROKEN, State.HELD]
        assert lock.why == "1 of 2 holders: what its holder said of itself is lost"
        inspector.clear(lock, by="Ada", reason="lost")
        assert inspector.get("places") is None

    def test_many_holders(
        self, inspector: Inspector, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One request reads a bounded number of holders."""
        monkeypatch.setattr(permits, "SHOWN", 4)
        looked_at = []

        async def script(self: SyncPort, name: str, *args: Any) -> Any:
            answer = await ask(self, name, *args)
            if name == "inspection_locks":
                looked_at.append(sum(max(0, len(lock) - 6) for lock in answer[1:]))
            return answer

        ask = SyncPort.script
        monkeypatch.setattr(SyncPort, "script", script)
        with ExitStack() as held:
            for number in range(6):
                held.enter_context(redis_lock(f"mutex:{number}", ttl=60 + number))
                for _ in range(3 if number else 5):
                    held.enter_context(Semaphore(f"places:{number}", 9, ttl=50 + number))
            found = {lock.name: lock for lock in inspector.page().items}
        assert max(looked_at) < 4 + 4
        assert len(found) == 12
        assert [len(found[f"places:{number}"].holders) for number in range(6)] == [4] + 5 * [3]
        assert [found[f"places:{number}"].holding for number in range(6)] == [5] + 5 * [3]

    def test_what_is_none(self, inspector: Inspector, redis: Redis) -> None:
        """A sorted set of others is a lock that several hold, of whom nothing is known."""
        redis.zadd("redislock:{places}", {"somebody": 4e12})
        lock = get(inspector, "places")
        assert (lock.kind, lock.state) == (Kind.FOREIGN, State.BROKEN)
        assert inspector.clear(lock, by="Ada", reason="none")
        assert not redis.exists("redislock:{places}")


class TestTimestampLocks:
    @pytest.fixture(autouse=True)
    def _clean(self, redis: Redis) -> Iterator[None]:
        redis.delete("lock.import")
        yield
        redis.delete("lock.import")

    def test_ours(self, redis: Redis) -> None:
        """The key has only the end of the lease; the holder is stored beside it."""
        inspector = Inspector(cache_locks=True)
        lock = TimestampLock("lock.import", ttl=30, label="shop/imports.py:42 in load")
        lease = lock.acquire()
        (found,) = inspector.page().items
        assert (found.name, found.kind, found.state) == (
            *("lock.import", Kind.TIMESTAMP),
            State.HELD,
        )
        assert (found.holder.owner, found.holder.label) == (lease.owner, lease.label)
        assert found.holder.fencing_token is None
        assert found.holder.acquired_at == lease.acquired_at
        assert found.holder.remaining is not None
        assert 25 < found.holder.remaining <= 31
        assert (found.ttl, found.waiters) == (30, 0)
        assert inspector.clear(found, by="Ada", reason="stuck")
        assert not redis.exists("lock.import")
        with pytest.raises(LeaseRevoked, match="by Ada"):
            lease.extend()
        assert inspector.page().items == []

    def test_one_that_changed_hands(self, redis: Redis) -> None:
        """A later holder is not cleared."""
        inspector = Inspector(cache_locks=True)
        with TimestampLock("lock.import"):
            found = get(inspector, "lock.import")
        with TimestampLock("lock.import") as lease:
            assert not inspector.clear(found, by="Ada", reason="stuck")
            lease.extend()

    def test_one_whose_time_is_over(self, redis: Redis) -> None:
        """The holder is still known, and the lock is cleared by its value."""
        inspector = Inspector(cache_locks=True)
        lease = TimestampLock("lock.import", renew=False).acquire()
        value = str(int(redis.time()[0]) - 5)
        redis.set("lock.import", value)
        redis.hset("redislock:key:{lock.import}:timestamp", "until", value)
        found = get(inspector, "lock.import")
        assert (found.kind, found.state) == (Kind.TIMESTAMP, State.STALE)
        assert found.why.startswith("its time was over at")
        assert (found.holder.owner, found.holder.remaining) == (lease.owner, 0)
        assert [lock.name for lock in inspector.stale()] == ["lock.import"]
        assert inspector.clear(found, by="Ada", reason="stuck")
        assert not redis.exists("lock.import")

    def test_an_old_client_that_ours_wait_for(self, redis: Redis) -> None:
        """The lock is listed; what an earlier holder wrote does not describe it."""
        inspector = Inspector(cache_locks=True)
        with TimestampLock("lock.import"):
            pass
        redis.set("lock.import", int(redis.time()[0]) + 100)
        assert inspector.page().items == []
        assert TimestampLock("lock.import").acquire(wait=0) is None
        (found,) = inspector.page().items
        assert (found.kind, found.state) == (Kind.TIMESTAMP, State.HELD)
        assert (found.holder.owner, found.ttl) == (None, None)
        assert found.holder.remaining is not None
        assert 90 < found.holder.remaining <= 100
        assert inspector.clear(found, by="Ada", reason="it is gone")
        assert not redis.exists("lock.import")
