"""`once` and `single_flight` when processes die, messages are lost, and Redis is away."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, LockUnavailable, once, redis_lock, single_flight
from django_redislock.lease.watchdog import watchdog
from django_redislock.locks import single_flight as flights
from django_redislock.transport.server import server_of
from tests.caches import caches
from tests.contract.api import Api, queued
from tests.faults.conftest import load_scripts
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.scene import FAULTS, FOR_EVER, PATIENT, RESETS
from tests.processes import Start, Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

KEY = "redislock:{once:job}"
RECORD = f"{KEY}:record"
FLIGHT = "redislock:{single_flight:number}"

ACQUIRE, RELEASE = script("record_acquire"), script("record_release")
PROGRAMS = "tests.faults.test_once"


@pytest.fixture(autouse=True)
def _scripts(redis: Redis) -> None:
    load_scripts(redis)


class TestOnce:
    def test_killed(self, start: Start, redis: Redis) -> None:
        """It was not done: one who waited for it does it, and the other waits for that one."""
        first = start(f"{PROGRAMS}:work")
        assert first.says() == "first"
        others = [start(f"{PROGRAMS}:work") for _ in range(2)]
        queued(redis, "once:job", 2)
        first.kill()
        redis.pexpire(KEY, 1)  # its lease ends, rather than in half a minute
        second = next_first(others)
        assert not redis.exists(RECORD)
        second.go_on()
        others.remove(second)
        assert second.says() == "left"
        assert others[0].says() == "done"
        assert others[0].says() == "left"

    def test_killed_for_good(self, start: Start, redis: Redis) -> None:
        """With "lose" nobody does it again."""
        first = start(f"{PROGRAMS}:work", "lose")
        assert first.says() == "first"
        other = start(f"{PROGRAMS}:work", "lose")
        queued(redis, "once:job", 1)
        first.kill()
        redis.pexpire(KEY, 1)
        assert other.says() == "done"

    def test_stopped_for_longer_than_its_lease(self, start: Start, redis: Redis) -> None:
        """Somebody else does it meanwhile; the late one is told, and its word does not count."""
        late = start(f"{PROGRAMS}:work")
        assert late.says() == "first"
        late.signal(signal.SIGSTOP)
        redis.pexpire(KEY, 1)
        other = start(f"{PROGRAMS}:work")
        assert other.says() == "first"
        late.signal(signal.SIGCONT)
        late.go_on()
        assert late.says() == "lost"
        assert not redis.exists(RECORD)
        other.go_on()
        assert other.says() == "left"
        assert redis.exists(RECORD)

    def test_found_done_while_it_waits(self, api: Api, redis: Redis) -> None:
        """The answer ends the wait at the server, too, although somebody still holds the lock."""
        holder = redis_lock("once:job").acquire(wait=0)
        waits = api.start(lambda: api.enter(once("job", wait=PATIENCE), lambda first: first))
        queued(redis, "once:job", 1)
        redis.set(RECORD, b"done")
        assert waits.result(PATIENCE) is False
        assert not redis.exists(f"{KEY}:queue", f"{KEY}:waiters")
        holder.release()


def next_first(workers: list[Worker]) -> Worker:
    """The one of them that is the first now; the others say nothing yet."""

    def holding() -> list[Worker]:
        holder = redis_lock("once:job").holder()
        owner = (holder and holder.owner) or ""
        return [worker for worker in workers if f":{worker.process.pid}:" in owner]

    (found,) = eventually(holding)
    assert found.says() == "first"
    return found


class TestLostMessages:
    @pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
    def test_the_record(
        self, api: Api, proxy: Proxy, redis: Redis, settings: Any, fault: Fault
    ) -> None:
        """The job counts as done, whatever happens to the message that says so."""
        settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=PATIENT if fault in RESETS else 1)
        rule = proxy.on(RELEASE, fault)
        assert api.enter(once("job"), lambda first: first) is True
        rule.happened()
        assert eventually(lambda: redis.get(RECORD)) == b"done"
        eventually(lambda: not redis.exists(KEY))
        assert api.enter(once("job"), lambda first: first) is False

    @pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
    def test_the_question(self, api: Api, proxy: Proxy, fault: Fault) -> None:
        """A connection that was closed while it was idle is no reason not to do it."""
        rule = proxy.on(ACQUIRE, fault)
        assert api.enter(once("job"), lambda first: first) is True
        rule.happened()
        rule = proxy.on(ACQUIRE, fault)
        assert api.enter(once("job"), lambda first: first) is False
        rule.happened()

    @pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
    def test_the_question_of_one_who_waits(
        self, api: Api, proxy: Proxy, redis: Redis, settings: Any, fault: Fault
    ) -> None:
        """It is asked again, and answered by the record of the one who was first. Nothing is left
        of the waiter."""
        settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=PATIENT if fault in RESETS else 1)
        first = redis_lock("once:job", using="default").acquire(wait=0)
        rule = proxy.on(ACQUIRE, fault)
        waits = api.start(lambda: api.enter(once("job", wait=PATIENCE), lambda first: first))
        rule.happened()
        queued(redis, "once:job", 1)
        redis.set(RECORD, b"done")
        assert waits.result(PATIENCE) is False
        eventually(lambda: not redis.exists(f"{KEY}:queue", f"{KEY}:waiters"))
        first.release()
        assert not redis.exists(KEY)

    def test_a_question_that_comes_late(
        self, api: Api, proxy: Proxy, redis: Redis, settings: Any
    ) -> None:
        """The lock is not taken for a caller that has found the record meanwhile."""
        settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=0.5)
        late = proxy.on(ACQUIRE, Fault.HOLD_REQUEST)
        waits = api.start(lambda: api.enter(once("job", wait=PATIENCE), lambda first: first))
        late.happened()
        redis.set(RECORD, b"done")
        assert waits.result(PATIENCE) is False
        redis.delete(RECORD)
        eventually(lambda: [*redis.scan_iter(match=f"{KEY}:gone:*")])
        late.let_go()
        eventually(lambda: late.carried_out)
        assert not redis.exists(KEY)

    @pytest.mark.parametrize("release", ["exit", "commit"])
    @pytest.mark.django_db(transaction=True)
    def test_a_record_that_comes_late(
        self, proxy: Proxy, redis: Redis, settings: Any, release: Any
    ) -> None:
        """A record that was forgotten meanwhile stays forgotten."""
        settings.CACHES = caches(proxy.url, SOCKET_TIMEOUT=0.5)
        late = proxy.on(RELEASE, Fault.HOLD_REQUEST)
        with transaction.atomic(), once("job", release=release) as first:
            assert first
        eventually(lambda: redis.get(RECORD) == b"done" and not redis.exists(KEY))
        redis.delete(RECORD)
        late.let_go()
        eventually(lambda: late.carried_out)
        assert not redis.exists(RECORD)

    def test_a_release_that_is_repeated_after_the_lease(
        self, api: Api, proxy: Proxy, redis: Redis
    ) -> None:
        """The job counts as done, although Redis was away until its lease had ended."""

        def cut(first: bool) -> bool:
            proxy.cut()
            redis.pexpire(KEY, 1)
            return first

        assert api.enter(once("job", ttl=600), cut) is True
        eventually(lambda: not redis.exists(KEY))
        assert not redis.exists(RECORD)
        proxy.mend()
        assert eventually(lambda: redis.get(RECORD)) == b"done"

    def test_a_release_that_is_repeated_after_others_had_the_lock(
        self, api: Api, proxy: Proxy, redis: Redis
    ) -> None:
        """A result that others have replaced does not come back."""
        function = single_flight("number", 600)(api.function(lambda: proxy.cut() or 7))
        assert api.call(function) == 7
        redis.delete(FLIGHT)
        redis.set(f"{FLIGHT}:record", "newer")
        proxy.mend()
        eventually(lambda: not watchdog(server_of("default"))._to_release)
        assert redis.get(f"{FLIGHT}:record") == b"newer"


class TestRedisAway:
    def test_before(self, api: Api, settings: Any) -> None:
        """Nothing is done, since nobody could know."""
        settings.CACHES = caches("unix:///nowhere/redis.sock")
        ran: list[Any] = []
        for options in ({"wait": 0}, {"wait": 0.2}, {"wait": 0, "on_conflict": "skip"}):
            with pytest.raises(LockUnavailable):
                api.enter(once("job", **options), ran.append)
            flight = single_flight("number", wait=options["wait"])
            with pytest.raises(LockUnavailable):
                api.call(flight(api.function(lambda: ran.append(1))))
        with pytest.raises(LockUnavailable):
            api.forget(once("job"))
        with pytest.raises(LockUnavailable):
            api.initialise("salt", 1)
        assert ran == []

    def test_it_comes_back_within_the_wait(
        self, api: Api, own_server: RedisServer, redis: Redis
    ) -> None:
        """A waiter for the lock waits for Redis, too."""
        assert api.enter(once("another"), lambda first: first)
        own_server.stop()
        waits = api.start(lambda: api.enter(once("job", wait=PATIENCE), lambda first: first))
        own_server.start()
        assert waits.result(PATIENCE) is True

    def test_at_the_end(self, api: Api, own_server: RedisServer) -> None:
        """It was done: leaving does not raise, and it is written down when Redis is back."""
        assert api.enter(once("job"), lambda first: own_server.stop() or first) is True
        own_server.start()
        with Redis.from_url(own_server.url) as redis:
            assert eventually(lambda: redis.get(RECORD)) == b"done"
        assert api.enter(once("job"), lambda first: first) is False

    def test_at_the_end_of_a_computation(self, api: Api, own_server: RedisServer) -> None:
        """Its caller has the result, which nobody else can be told."""
        function = single_flight("number")(api.function(lambda: own_server.stop() or 7))
        assert api.call(function) == 7
        own_server.start()


class TestInitialise:
    @pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER])
    def test_a_lost_message(self, api: Api, proxy: Proxy, fault: Fault) -> None:
        """It is sent again, and finds its own value."""
        rule = proxy.on(script("record_first"), fault)
        assert api.initialise("salt", 7) == 7
        rule.happened()
        assert api.initialise("salt", 8) == 7


class TestSingleFlight:
    @pytest.mark.parametrize("ttl", ["", "60"])
    def test_killed(self, start: Start, redis: Redis, ttl: str) -> None:
        """The next one computes."""
        first = start(f"{PROGRAMS}:share", ttl)
        assert first.lines(2) == ["asking", "computing"]
        second = start(f"{PROGRAMS}:share", ttl)
        queued(redis, "single_flight:number", 1)
        third = start(f"{PROGRAMS}:share", ttl)
        queued(redis, "single_flight:number", 2)
        first.kill()
        redis.pexpire(FLIGHT, 1)
        assert second.lines(2) == ["asking", "computing"]
        second.go_on("8")
        assert second.says() == "got 8"
        assert third.lines(2) == ["asking", "got 8"]

    def test_it_could_not_look_first(
        self, api: Api, proxy: Proxy, start: Start, redis: Redis
    ) -> None:
        """A caller that does not know which result was there when it came takes no result."""
        first = start(f"{PROGRAMS}:share")
        assert first.lines(2) == ["asking", "computing"]
        lost = proxy.on(ACQUIRE, Fault.RESET_AFTER, times=FOR_EVER)
        function = single_flight("number", wait=PATIENCE)(api.function(lambda: 8))
        waits = api.start(lambda: api.call(function))
        queued(redis, "single_flight:number", 1)
        first.go_on("7")
        assert first.says() == "got 7"
        lost.let_go()
        assert waits.result(PATIENCE) == 8

    def test_killed_while_it_renews(self, start: Start, redis: Redis) -> None:
        """The others have the old result meanwhile; when its lease has ended, one of them
        renews."""
        first, second = (start(f"{PROGRAMS}:renew") for _ in range(2))
        first.go_on()
        assert first.says() == "got 1"
        redis.pexpire(f"{FLIGHT}:record", 200_000)
        first.go_on()
        assert sorted(first.lines(2)) == ["computing", "got 1"]
        second.go_on()
        assert second.says() == "got 1"
        first.kill()
        second.go_on()
        assert second.says() == "got 1"
        redis.delete(FLIGHT)  # its lease ends, rather than in half a minute
        second.go_on()
        assert sorted(second.lines(2)) == ["computing", "got 1"]

    def test_stopped_while_it_renews(self, start: Start, redis: Redis) -> None:
        """For longer than its lease: its late result does not replace the newer one."""
        first, second = (start(f"{PROGRAMS}:renew", "quick") for _ in range(2))
        first.go_on()
        assert first.says() == "got 1"
        redis.pexpire(f"{FLIGHT}:record", 200_000)
        first.go_on()
        assert sorted(first.lines(2)) == ["computing", "got 1"]
        first.stop()
        redis.delete(FLIGHT)
        second.go_on()
        assert sorted(second.lines(2)) == ["computing", "got 1"]
        newer = eventually(lambda: redis.get(f"{FLIGHT}:record").partition(b"text|")[2] != b"1")
        assert newer
        record = redis.get(f"{FLIGHT}:record")
        first.signal(signal.SIGCONT)
        first.go_on("end")
        assert first.ends() == 0
        assert redis.get(f"{FLIGHT}:record") == record

    def test_forked(self, start: Start) -> None:
        """A child does not wait for a thread that stayed in its parent."""
        worker = start(f"{PROGRAMS}:fork")
        assert sorted(worker.lines(2)) == ["child True", "parent True"]
        assert worker.ends() == 0


# What the processes run.


def work(on_failure: str = "retry") -> None:
    """Do the job once, when told to go on; or find it done."""
    try:
        with once("job", on_failure=on_failure, wait=None) as first:  # type: ignore[arg-type]
            say("first" if first else "done")
            if first:
                told()
    except LeaseLost:
        say("lost")
    else:
        say("left")


def share(ttl: str = "") -> None:
    """Get the number that the first one is told; compute when nobody does."""

    @single_flight("number", float(ttl) if ttl else None, wait=None)
    def number() -> str:
        say("computing")
        return told()

    say("asking")
    say("got", number())


def renew(how: str = "") -> None:
    """Get the number each time that a line comes. A renewal takes half a second, or for ever."""

    @single_flight("number", ttl=60, stale=300)
    def number() -> int:
        if threading.current_thread() is threading.main_thread():
            return 1
        say("computing")
        threading.Event().wait(0.5 if how else None)
        return os.getpid()

    while told() != "end":
        say("got", number())
    eventually(lambda: not flights._calls)


def fork() -> None:
    """Fork in the middle of a computation: the child has no part in it."""

    @single_flight("number", wait=None)
    def number() -> int:
        if os.getpid() == parent:
            if (child := os.fork()) == 0:
                say("child", elsewhere())
                os._exit(0)
            children.append(child)
        return os.getpid()

    def elsewhere() -> bool:
        # In another thread, since this one is in the middle of it.
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(number()))
        thread.start()
        thread.join()
        return results == [os.getpid()] or results == [parent]

    parent, children = os.getpid(), []
    say("parent", number() == parent)
    os.waitpid(children[0], 0)
