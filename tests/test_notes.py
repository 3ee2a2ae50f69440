"""A lease that remembers: what a holder notes, and who inherits it."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LockNotAcquired,
    LockUnavailable,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    TimestampLock,
    TooManyResumptions,
    current_lease,
    once,
    redis_lock,
)
from django_redislock.inspection import Inspector
from django_redislock.primitives import note
from django_redislock.primitives.contract import run
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.contract.api import Api, queued
from tests.processes import Start
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{export:7}"
NOTE = f"{KEY}:note"
WORK = {"cursor": 41, "done": 41, "total": 900}


def lock(**options: Any) -> redis_lock:
    return redis_lock("export:7", **options)


def left_behind(**options: Any) -> None:
    """Be a holder that fails after it has noted something."""
    with pytest.raises(ZeroDivisionError), lock(**options) as lease:
        lease.note(**WORK)
        raise ZeroDivisionError


def work() -> None:
    """Note something in a process that waits to be killed."""
    with lock(wait=None, ttl=60) as lease:
        lease.checkpoint(**WORK, inherited=lease.inherited)
        say("noted", lease.resumptions)
        told()


def heir(ttl: str = "60") -> None:
    """Wait for the lock, and say what it inherits."""
    say("waiting")
    with lock(wait=None, ttl=float(ttl)) as lease:
        say(lease.inherited, lease.resumptions)


class TestEnds:
    """Which ends of a holder leave its note."""

    def test_a_holder_that_was_told_of_its_loss(self, api: Api, redis: Redis) -> None:
        """Its own deadline comes before the server's, so its release may find the lock."""
        lease = api.acquire(lock(ttl=1, renew=False))
        lease.checkpoint(**WORK)
        redis.pexpire(KEY, 60_000)
        eventually(lambda: not lease.remaining())
        with pytest.raises(LeaseLost):
            api.release(lease)
        with lock(wait=0) as following:
            assert following.inherited == WORK

    def test_a_holder_that_was_killed(self, start: Start, redis: Redis) -> None:
        """The next one goes on where it was."""
        worker = start("tests.test_notes:work")
        assert worker.says() == "noted 0"
        worker.kill()
        redis.pexpire(KEY, 1)
        with lock() as lease:
            assert lease.inherited == {**WORK, "inherited": None}
            assert lease.resumptions == 1

    def test_an_exception(self, api: Api, redis: Redis) -> None:
        """What was noted and not written yet, is written then."""
        left_behind()
        lease = api.acquire(lock())
        assert (lease.inherited, lease.resumptions) == (WORK, 1)
        api.release(lease)
        assert not redis.exists(NOTE)

    def test_an_ordinary_end(self, redis: Redis) -> None:
        """The work is done: the next holder begins anew."""
        left_behind()
        with lock() as lease:
            lease.checkpoint(cursor=42)
            assert redis.exists(NOTE)
        assert not redis.exists(NOTE)
        with lock() as lease:
            assert lease.inherited is None
            assert lease.resumptions == 0

    def test_an_end_by_hand(self, redis: Redis) -> None:
        """It is an ordinary one, unless an exception is being handled, as in a `finally`."""
        lease = lock().acquire()
        with pytest.raises(ZeroDivisionError):
            try:
                lease.note(**WORK)
                raise ZeroDivisionError
            finally:
                lease.release()
        lease = lock().acquire()
        assert lease.inherited == WORK
        lease.release()
        assert not redis.exists(NOTE)

    def test_an_end_by_hand_in_a_task(self, redis: Redis) -> None:
        async def task() -> None:
            lease = await lock().aacquire()
            try:
                lease.note(**WORK)
                raise ZeroDivisionError
            finally:
                await lease.arelease()

        with pytest.raises(ZeroDivisionError):
            asyncio.run(task())
        with lock() as lease:
            assert lease.inherited == WORK

    def test_it_is_kept(self) -> None:
        """For work that goes on where the last one has ended; that is no resumption."""
        for number in range(3):
            with lock(keep_note=True) as lease:
                assert lease.inherited == ({"cursor": number - 1} if number else None)
                assert lease.resumptions == min(number, 1)
                lease.note(cursor=number)

    def test_it_is_kept_though_nothing_new_is_noted(self) -> None:
        left_behind(keep_note=True)
        for _ in range(3):
            with lock(keep_note=True, max_resumptions=1) as lease:
                assert lease.inherited == WORK

    def test_an_inner_block(self) -> None:
        """The end of the outermost block decides."""
        with lock(reentrant=True) as lease:
            with pytest.raises(ZeroDivisionError), lock(reentrant=True):
                lease.checkpoint(**WORK)
                raise ZeroDivisionError
        with lock() as lease:
            assert lease.inherited is None

    def test_it_is_forgotten_after_a_while(self, redis: Redis) -> None:
        left_behind(note_ttl=50)
        assert 40_000 < redis.pttl(NOTE) <= 50_000
        left_behind()
        assert redis.pttl(NOTE) > 6 * 86_400_000


class TestHeirs:
    """However the lock comes to its next holder, the note comes with it."""

    def test_a_waiter_of_this_process(self, api: Api, redis: Redis) -> None:
        with pytest.raises(ZeroDivisionError), lock() as lease:
            lease.note(**WORK)
            waiter = api.start(lambda: api.acquire(lock(), wait=None))
            queued(redis, "export:7")
            raise ZeroDivisionError
        got = waiter.result(PATIENCE)
        assert (got.inherited, got.resumptions) == (WORK, 1)
        api.release(got)

    def test_a_waiter_of_another_process(self, start: Start, redis: Redis) -> None:
        worker = start("tests.test_notes:heir")
        with pytest.raises(ZeroDivisionError), lock() as lease:
            assert worker.says() == "waiting"
            queued(redis, "export:7")
            lease.note(**WORK)
            raise ZeroDivisionError
        assert worker.says() == f"{WORK} 1"

    def test_a_waiter_after_a_kill(self, start: Start, redis: Redis) -> None:
        """Nobody hands it over: the waiter looks."""
        worker = start("tests.test_notes:work")
        assert worker.says() == "noted 0"
        waiter = start("tests.test_notes:heir")
        assert waiter.says() == "waiting"
        queued(redis, "export:7")
        worker.kill()
        redis.pexpire(KEY, 1)
        assert waiter.says() == f"{ {**WORK, 'inherited': None} } 1"

    def test_a_waiter_after_a_clearing(self, start: Start, redis: Redis) -> None:
        lease = lock().acquire()
        lease.checkpoint(**WORK)
        waiter = start("tests.test_notes:heir")
        assert waiter.says() == "waiting"
        queued(redis, "export:7")
        lock().clear(reason="it hangs")
        assert waiter.says() == f"{WORK} 1"

    def test_each_is_counted_once(self, redis: Redis) -> None:
        """Also if its request is sent again."""
        left_behind()
        lease = lock().acquire()
        claim = lease._claim
        again = run(claim.primitive.acquire(SyncPort(server_of("default")), claim, 0))
        assert again.fencing_token == lease.fencing_token
        assert note.Note.read(redis.get(NOTE)).resumptions == 1

    def test_a_free_lock_without_a_note(self, redis: Redis) -> None:
        """It takes the two requests that it takes at most."""
        with lock():
            pass
        before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        with lock() as lease:
            pass
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 2
        assert lease.inherited is None

    def test_several_names(self, redis: Redis) -> None:
        """A lock on several names inherits nothing, and leaves the note where it is."""
        left_behind()
        with MultiLock(["export:7", "export:8"]) as lease:
            assert lease.inherited is None
            with pytest.raises(TypeError, match="has no notes"):
                lease.note(cursor=1)
        with MultiLock(["export:7"]) as lease:
            assert lease.inherited == WORK
        assert not redis.exists(NOTE)


class TestWrites:
    def test_a_renewal_writes_it(self, redis: Redis) -> None:
        with lock() as lease:
            lease.note(**WORK)
            assert not redis.exists(NOTE)
            lease.extend()
            assert b'"cursor": 41' in redis.get(NOTE)

    def test_the_watchdog_renews_it(self, redis: Redis) -> None:
        with lock(ttl=1) as lease:
            lease.note(**WORK)
            eventually(lambda: redis.exists(NOTE))

    def test_it_replaces_the_one_before(self, redis: Redis) -> None:
        with lock() as lease:
            lease.checkpoint(first=1)
            lease.checkpoint(second=2)
            assert Inspector().note("export:7").content == {"second": 2}

    def test_a_write_that_comes_late(self, redis: Redis) -> None:
        """It does not overwrite a later note, as the watchdog's might."""
        with lock() as lease:
            lease.checkpoint(cursor=1)
            lease.checkpoint(cursor=2)
            port, text = SyncPort(server_of("default")), '|||{"cursor": 1}'
            assert run(note.write(port, lease._claim, 0, 1, text, 60)) is None
            assert Inspector().note("export:7").content == {"cursor": 2}
            assert run(note.write(port, lease._claim, 0, 3, text, 60)) is None
            assert Inspector().note("export:7").content == {"cursor": 1}

    def test_a_holder_that_is_late(self, redis: Redis) -> None:
        """It has lost its lease, does not know it yet, and writes nothing."""
        lease = lock(renew=False).acquire()
        redis.delete(KEY)
        with ThreadPoolExecutor(1) as other:
            successor = other.submit(lock().acquire).result()
            successor.checkpoint(cursor=9)
            with pytest.raises(LeaseLost, match="holds the lock now"):
                lease.checkpoint(cursor=1)
            assert Inspector().note("export:7").content == {"cursor": 9}
            with pytest.raises(LeaseLost):
                lease.note(cursor=1)
            other.submit(successor.release).result()

    def test_after_the_release(self, redis: Redis) -> None:
        """A write that was still on its way brings no note back."""
        with lock() as lease:
            lease.checkpoint(cursor=1)
        port, text = SyncPort(server_of("default")), '|||{"cursor": 1}'
        assert run(note.write(port, lease._claim, 0, 5, text, 60)) is not None
        assert not redis.exists(NOTE)

    def test_a_checkpoint_without_renewal(self, redis: Redis) -> None:
        with pytest.raises(KeyError), lock(renew=False) as lease:
            with pytest.raises(TypeError, match=r"call lease\.checkpoint"):
                lease.note(cursor=1)
            lease.checkpoint(cursor=1)
            assert redis.exists(NOTE)
            raise KeyError
        with lock() as lease:
            assert lease.inherited == {"cursor": 1}

    def test_redis_is_away(self, monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
        """A checkpoint says so; the note is written by the next renewal."""

        async def away(*_args: Any) -> None:
            raise LockUnavailable("away")

        with lock() as lease:
            with monkeypatch.context() as patch:
                patch.setattr(note, "write", away)
                with pytest.raises(LockUnavailable):
                    lease.checkpoint(cursor=1)
                lease.extend()
                assert not redis.exists(NOTE)
            lease.extend()
            assert Inspector().note("export:7").content == {"cursor": 1}

    def test_in_a_task(self, redis: Redis) -> None:
        async def task() -> None:
            async with lock() as lease:
                await lease.acheckpoint(cursor=1)
                assert redis.exists(NOTE)
                lease.note(cursor=2)
                await lease.aextend()
                assert Inspector().note("export:7").content == {"cursor": 2}
                raise KeyError

        with pytest.raises(KeyError):
            asyncio.run(task())
        with lock() as lease:
            assert lease.inherited == {"cursor": 2}

    def test_two_threads(self) -> None:
        """The notes of both are notes of one lease."""
        with lock() as lease:
            begin = threading.Barrier(8)
            threads = [
                threading.Thread(target=lambda: (begin.wait(), lease.checkpoint(cursor=1)))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            lease.checkpoint(cursor=2)
            assert Inspector().note("export:7").content == {"cursor": 2}

    @pytest.mark.parametrize("value", [("list", [1]), ("hash", {"a": 1})], ids=lambda its: its[0])
    def test_a_key_of_another_type(self, value: tuple[str, Any], redis: Redis) -> None:
        """Nothing can be inherited there, and the lock works as ever."""
        redis.rpush(NOTE, 1) if value[0] == "list" else redis.hset(NOTE, "a", 1)
        with lock() as lease:
            assert lease.inherited is None
        with pytest.raises(ZeroDivisionError), lock() as lease:
            lease.note(**WORK)
            raise ZeroDivisionError
        assert not redis.exists(KEY)

    @pytest.mark.parametrize(
        "value", ["", "x", "||||||", "x|1|2|3|4|5|6|{", "x|1|0|1||||[", "\xff"]
    )
    def test_a_foreign_text(self, value: str, redis: Redis) -> None:
        redis.set(NOTE, value)
        with lock() as lease:
            assert lease.inherited is None


class TestTransactions:
    pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

    def test_committed(self, redis: Redis) -> None:
        """It is written when the rows are there that it speaks of."""
        with pytest.raises(ZeroDivisionError), lock() as lease:
            with transaction.atomic(), transaction.atomic("other"):
                lease.checkpoint(**WORK)
                assert not redis.exists(NOTE)
            assert redis.exists(NOTE)
            with transaction.atomic():
                lease.note(cursor=42)
                lease.extend()
                assert Inspector().note("export:7").content == WORK
            raise ZeroDivisionError
        with lock() as lease:
            assert lease.inherited == {"cursor": 42}

    def test_rolled_back(self, redis: Redis) -> None:
        with pytest.raises(ZeroDivisionError), lock() as lease:
            lease.checkpoint(cursor=1)
            with transaction.atomic():
                lease.note(cursor=2)
                lease.checkpoint(cursor=3)
                raise ZeroDivisionError
        with lock() as lease:
            assert lease.inherited == {"cursor": 1}

    def test_one_of_two_is_rolled_back(self, redis: Redis) -> None:
        with lock() as lease:
            with pytest.raises(ZeroDivisionError), transaction.atomic("other"):
                with transaction.atomic():
                    lease.checkpoint(cursor=3)
                raise ZeroDivisionError
            assert not redis.exists(NOTE)

    def test_a_lease_that_is_lost(self, redis: Redis) -> None:
        """A checkpoint asks, before the commit."""
        lease = lock().acquire()
        redis.delete(KEY)
        with pytest.raises(LeaseLost), transaction.atomic():
            lease.checkpoint(cursor=3)

    @pytest.mark.parametrize("fails", [False, True])
    def test_released_after_the_transaction(self, fails: bool, redis: Redis) -> None:
        """If it is rolled back, the work is not done."""
        try:
            with transaction.atomic():
                with lock(release="commit") as lease:
                    pass
                with lock(release="commit", reentrant=True) as lease:
                    lease._noting().add("|||{}")
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            eventually(lambda: not redis.exists(KEY))
        assert bool(redis.exists(NOTE)) is fails


class TestTooMany:
    def test_it_stops(self, api: Api, redis: Redis) -> None:
        """Work that fails each time is not begun without end."""
        left_behind()
        for number in (1, 2):
            with pytest.raises(KeyError), lock(max_resumptions=2) as lease:
                assert lease.resumptions == number
                raise KeyError
        for number in (3, 4):
            with pytest.raises(TooManyResumptions) as raised:
                api.acquire(lock(max_resumptions=2))
            assert raised.value.resumptions == number
            assert raised.value.name == "export:7"
            assert not redis.exists(KEY)
        assert Inspector().note("export:7").content == WORK
        with lock(max_resumptions=5) as lease:
            assert lease.inherited == WORK

    def test_by_settings(self, settings: Any) -> None:
        settings.REDISLOCK = {"LOCKS": {"export:*": {"MAX_RESUMPTIONS": 0}}}
        left_behind()
        with pytest.raises(TooManyResumptions):
            lock().acquire()


class TestContinued:
    def test_exported(self, api: Api) -> None:
        """The process that continues the lease has what was inherited, and the last note."""
        left_behind()
        lease = lock().acquire()
        text = lease.export()
        lease = Lease.restore(text)
        assert (lease.inherited, lease.resumptions) == (WORK, 1)
        lease.note(cursor=50)
        lease = Lease.restore(lease.export())
        assert (lease.inherited, lease.resumptions) == ({"cursor": 50}, 1)
        with pytest.raises(KeyError), lease:
            raise KeyError
        with lock() as lease:
            assert (lease.inherited, lease.resumptions) == ({"cursor": 50}, 2)

    def test_exported_without_a_note(self, redis: Redis) -> None:
        lease = Lease.restore(lock().acquire().export())
        assert lease.inherited is None
        with pytest.raises(KeyError), lease:
            raise KeyError
        assert not redis.exists(NOTE)


class TestBadInput:
    @pytest.mark.parametrize(
        "value",
        [(1, 2), {1: 2}, {1}, date(2026, 1, 1), b"x", float("nan"), len, [[{"a": (1,)}]]],
        ids=repr,
    )
    def test_what_json_does_not_give_back(self, value: object, redis: Redis) -> None:
        """It is refused, and overwrites nothing."""
        with lock() as lease:
            lease.checkpoint(cursor=1)
            for say_it in (lease.note, lease.checkpoint):
                with pytest.raises(TypeError, match=r"^cursor can't be noted, since JSON"):
                    say_it(cursor=value)
            lease.extend()
            assert Inspector().note("export:7").content == {"cursor": 1}

    def test_too_long(self) -> None:
        with lock() as lease:
            lease.checkpoint(text="x" * 65_000)
            with pytest.raises(ValueError, match="65536 are allowed"):
                lease.note(text="x" * 66_000)

    def test_nothing(self) -> None:
        with lock() as lease, pytest.raises(TypeError, match=r"note\(cursor=row\.pk\)"):
            lease.note()

    def test_without_keywords(self) -> None:
        with lock() as lease:
            for say_it in (lease.note, lease.checkpoint, async_to_sync(lease.acheckpoint)):
                with pytest.raises(TypeError, match=r"by keywords .* note\(cursor=row\.pk\)"):
                    say_it({"cursor": 1})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Semaphore("export:7", 2),
            lambda: ReadWriteLock("export:7").read(),
            lambda: ReadWriteLock("export:7").write(),
            lambda: TimestampLock("export.7"),
            lambda: MultiLock(["export:7", "export:8"]),
        ],
        ids=["semaphore", "read", "write", "timestamp", "multi"],
    )
    def test_other_kinds(self, make: Callable[[], Any]) -> None:
        with make() as lease:
            assert lease.inherited is None
            for say_it in (lease.note, lease.checkpoint):
                with pytest.raises(TypeError, match="has no notes"):
                    say_it(cursor=1)

    def test_once(self) -> None:
        @once("job")
        def job() -> None:
            with pytest.raises(TypeError, match="has no notes"):
                current_lease().note(cursor=1)

        job()

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"max_resumptions": -1}, ValueError),
            ({"max_resumptions": True}, TypeError),
            ({"note_ttl": 0}, ValueError),
            ({"keep_note": "yes"}, TypeError),
        ],
    )
    def test_arguments(self, options: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error, match=next(iter(options))):
            lock(**options)


class TestMigration:
    def test_together_with_a_timestamp_lock(self, redis: Redis) -> None:
        options = {"timestamp_key": "lock.export"}
        left_behind(**options)
        with lock(**options) as lease:
            assert lease.inherited == WORK
        assert not redis.exists(NOTE)


class TestProgress:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"done": 41, "total": 900}, "41 of 900, 5 %, about "),
            ({"done": 41}, "41 done"),
            ({"done": 0, "total": 900}, "0 of 900, 0 %"),
            ({"done": 1_500_000.5}, "1,500,000.5 done"),
            ({"done": 3, "total": 0}, "3 done"),
            ({"done": "many", "total": 900}, ""),
            ({"done": True, "total": 10**400}, ""),
            ({"cursor": 41}, ""),
        ],
    )
    def test_of_a_note(self, content: dict[str, Any], said: str) -> None:
        with lock() as lease:
            lease.checkpoint(**content)
            progress = str(Inspector().get("export:7").progress or "")
            assert progress.startswith(said)
            assert bool(progress) is bool(said)

    def test_how_long_it_may_take(self, redis: Redis) -> None:
        """At the pace of this holder, whatever those before it had done."""
        with pytest.raises(KeyError), lock() as lease:
            lease.note(done=500, total=1000)
            raise KeyError
        with lock() as lease:
            assert lease.inherited == {"done": 500, "total": 1000}
            lease.checkpoint(done=600, total=1000)
            began = lease.acquired_at.timestamp() * 1e6
            by, times, turn, _written, rest = redis.get(NOTE).split(b"|", 4)
            # As if the note had been written ten seconds after the beginning.
            written = b"%d" % (began + 10e6)
            redis.set(NOTE, b"|".join([by, times, turn, written, rest]))
            left = Inspector().get("export:7").progress.left
            assert 25 < left < 55  # 400 more at 10 a second

    def test_other_keys(self, redis: Redis) -> None:
        """No note, no progress; of other kinds neither."""
        with lock(), Semaphore("places", 2):
            assert [one.progress for one in Inspector().page().items] == [None, None]

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"done": 41, "total": 900}, r"41 of 900, 5 %, about \d+ (s|min) to go"),
            ({"done": 41}, "41"),
            ({"done": 0, "total": 900}, "0 of 900, 0 %"),
            ({"cursor": 41}, None),
            ({}, None),
        ],
    )
    def test_in_the_error_of_a_waiter(
        self, api: Api, content: dict[str, Any], said: str | None
    ) -> None:
        with lock() as lease:
            if content:
                lease.checkpoint(**content)
            for wait in (0.01, 0):
                with pytest.raises(LockNotAcquired) as raised:
                    api.start(lambda wait=wait: api.enter(lock(wait=wait), print)).result(PATIENCE)
                expected = said if wait else None
                assert re.fullmatch(expected or "", raised.value.progress)
                end = rf"\. It has noted: {expected}\.$" if expected else r"Waited \S+ s\.$"
                assert re.search(end, str(raised.value))
                assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
