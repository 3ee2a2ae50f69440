"""`single_flight` in one process: who computes when the first is cut short, forms, bad input."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from redis import Redis

from django_redislock import single_flight
from django_redislock.base import background
from django_redislock.locks import single_flight as flights
from tests.contract.test_single_flight import followers, grow_old
from tests.faults.test_no_threads import Refusing
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{single_flight:rates}"


async def joined(number: int) -> None:
    """Wait until so many wait for the flight that is under way."""
    while not flights._calls or followers(next(iter(flights._calls.values()))[1]) < number:
        await asyncio.sleep(0.002)


class TestCutShort:
    def test_a_task_that_is_cancelled(self, redis: Redis) -> None:
        """One of those who waited for it computes, and the others wait for that one."""
        runs: list[int] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        @single_flight("rates")
        async def rates() -> int:
            runs.append(1)
            begun.set()
            if len(runs) == 1:
                await asyncio.sleep(PATIENCE)
            await go_on.wait()
            return len(runs)

        async def main() -> None:
            first, *others = (asyncio.create_task(rates()) for _ in range(4))
            await begun.wait()
            await joined(3)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await joined(2)
            go_on.set()
            assert await asyncio.gather(*others) == [2, 2, 2]

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert not flights._calls
        assert not redis.exists(KEY)

    def test_one_who_waits_is_cancelled(self) -> None:
        """The others still get the result."""
        go_on = asyncio.Event()

        @single_flight("rates")
        async def rates() -> str:
            await go_on.wait()
            return "result"

        async def main() -> None:
            first, other, another = (asyncio.create_task(rates()) for _ in range(3))
            await joined(2)
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            go_on.set()
            assert await asyncio.gather(first, another) == ["result", "result"]

        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_an_interrupt(self, redis: Redis) -> None:
        """What is no Exception is nobody's outcome."""
        runs: list[int] = []
        begun, go_on = threading.Event(), threading.Event()

        @single_flight("rates")
        def rates() -> int:
            runs.append(1)
            if len(runs) == 1:
                begun.set()
                assert go_on.wait(PATIENCE)
                raise KeyboardInterrupt
            return len(runs)

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(rates)
            assert begun.wait(PATIENCE)
            other = threads.submit(rates)
            (flight,) = flights._calls.values()
            eventually(lambda: followers(flight.ended) == 1)
            go_on.set()
            with pytest.raises(KeyboardInterrupt):
                first.result(PATIENCE)
            assert other.result(PATIENCE) == 2
        assert not redis.exists(KEY)

    def test_several_loops(self) -> None:
        """One that computes in one event loop serves those who wait in another."""
        begun, go_on = threading.Event(), threading.Event()

        @single_flight("rates")
        async def rates() -> str:
            begun.set()
            await asyncio.to_thread(go_on.wait, PATIENCE)
            return "result"

        async def other() -> str:
            return await rates()

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(lambda: asyncio.run(rates()))
            assert begun.wait(PATIENCE)
            waits = threads.submit(lambda: asyncio.run(other()))
            (flight,) = flights._calls.values()
            eventually(lambda: followers(flight.ended) == 1)
            go_on.set()
            assert [first.result(PATIENCE), waits.result(PATIENCE)] == ["result", "result"]


where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="")


class Rates:
    """A function whose result is old, and that says who computes the new one."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.by: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.stale = single_flight("rates", ttl=60, stale=300)
        self.get = self.stale(self.compute)
        self.aget = self.stale(self.acompute)

    def compute(self) -> int:
        self.by.append((threading.current_thread().name, where.get()))
        if self.error is not None and len(self.by) > 1:
            raise self.error
        return len(self.by)

    async def acompute(self) -> int:
        await asyncio.sleep(0)
        return self.compute()

    def grow_old(self) -> None:
        grow_old(self._redis)

    def renewed(self) -> int:
        """The result, when no renewal is running."""
        eventually(lambda: not flights._calls)
        return self.get()


@pytest.fixture
def rates(redis: Redis) -> Rates:
    rates = Rates(redis)
    assert rates.get() == 1
    rates.grow_old()
    return rates


class TestRenewal:
    @pytest.mark.django_db(transaction=True)
    def test_in_a_thread(self, rates: Rates, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of ours, in a copy of the caller's context, whose connections are closed then."""
        closed: list[str] = []
        close = type(connection._connections[connection._alias]).close  # type: ignore[attr-defined]

        def noting(self: Any) -> None:
            thread = threading.current_thread()
            close(self)
            if thread is not threading.main_thread() and self.connection is not None:
                self.connection.close()  # Django closes none that is in memory
            closed.append(thread.name)

        monkeypatch.setattr(type(connection._connections[connection._alias]), "close", noting)  # type: ignore[attr-defined]
        query = rates.stale(lambda: connection.ensure_connection() or rates.compute())
        token = where.set("here")
        assert query() == 1
        where.reset(token)
        assert rates.renewed() == 2
        assert rates.by[1:] == [("redislock-renewal", "here")]
        eventually(lambda: "redislock-renewal" in closed)

    def test_in_a_task(self, rates: Rates) -> None:
        """Of the running loop, in a copy of the context."""

        async def main() -> None:
            where.set("here")
            assert await rates.aget() == 1
            assert len(rates.by) == 1
            while flights._calls:
                await asyncio.sleep(0.002)
            assert await rates.aget() == 2

        asyncio.run(main())
        assert rates.by[1:] == [("MainThread", "here")]

    @pytest.mark.parametrize("error", [None, ValueError("no")], ids=str)
    def test_without_a_thread(
        self,
        rates: Rates,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        error: Exception | None,
    ) -> None:
        """The caller computes before it goes on, and has the new result, if there is one."""
        refusing, rates.error = Refusing(monkeypatch), error
        assert rates.get() == (1 if error else 2)
        assert rates.by[1:] == [("MainThread", "")]
        assert ("was not computed anew" in caplog.text) is bool(error)
        refusing.end()
        rates.error = None
        assert rates.get() == (1 if error else 2)
        assert rates.renewed() == (3 if error else 2)

    def test_a_loop_that_ends_with_its_call(self, rates: Rates) -> None:
        """It cuts the task short: the old result stays, and the next caller of this process
        computes before it goes on."""
        get = async_to_sync(rates.aget)
        assert get() == 1
        assert len(rates.by) == 1
        assert not flights._calls
        eventually(lambda: get() == 2)
        assert len(rates.by) == 2
        assert get() == 2

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_what_is_no_exception(
        self, rates: Rates, kind: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged, too, and ends the thread, and nothing else."""
        rates.error = kind("odd")
        assert rates.get() == 1
        (record,) = eventually(lambda: [one for one in caplog.records if one.exc_info])
        assert record.exc_info is not None
        assert record.exc_info[1] is rates.error
        assert record.levelno == logging.ERROR
        rates.error = None
        assert rates.renewed() == 1
        assert rates.renewed() == 3

    def test_another_one_was_faster(self, rates: Rates, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process has renewed it before the thread runs: it does not compute."""
        start, other = background.start, single_flight("rates", ttl=60, stale=300)(lambda: 7)

        def late(work: Any, name: str) -> Any:
            monkeypatch.setattr(background, "start", start)
            other()
            eventually(lambda: other() == 7)
            return start(work, name)

        monkeypatch.setattr(background, "start", late)
        assert rates.get() == 1
        assert rates.renewed() == 7
        assert len(rates.by) == 1

    def test_redis_goes_away(
        self, rates: Rates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The renewal is logged as one that failed."""
        lock = rates.stale._lock
        monkeypatch.setattr(
            flights._Renewal, "acquire", lambda *_: lock._copy(type(lock), "")._attempt(None)
        )
        assert rates.get() == 1
        eventually(lambda: "was not computed anew" in caplog.text)
        assert len(rates.by) == 1

    def test_a_fork(self, rates: Rates) -> None:
        """A child does not wait for a renewal of its parent: nobody there would end it."""
        go_on = threading.Event()
        waiting = rates.stale(lambda: go_on.wait(PATIENCE) and rates.compute())
        assert waiting() == 1
        assert len(flights._calls) == 1
        if (child := os.fork()) == 0:
            os._exit(len(flights._calls))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go_on.set()
        assert rates.renewed() == 2


class TestForms:
    def test_without_a_name(self, redis: Redis) -> None:
        """A function without arguments has its dotted path."""

        @single_flight(ttl=60)
        def rates() -> int:
            return 7

        assert rates() == 7
        (key,) = redis.keys("redislock:*:record")
        assert b"{single_flight:tests.test_flights.TestForms." in key


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"ttl": 0}, ValueError, r"ttl must be between .* or None \(no limit\)"),
            ({"ttl": "day"}, TypeError, "ttl must be a number of seconds"),
            ({"wait": -1}, ValueError, "wait must be 0 or more seconds"),
            ({"stale": 300}, TypeError, r"stale= needs ttl=.*: ttl=60"),
            ({"ttl": 60, "stale": 0}, ValueError, "stale must be between .* seconds, not 0$"),
            ({"ttl": 60, "stale": "day"}, TypeError, "stale must be a number of seconds"),
            ({"using": ""}, TypeError, "using must be an alias of CACHES"),
            ({"serializer": "json"}, TypeError, "serializer must have the functions dumps and"),
            ({"serializer": SimpleNamespace(dumps=str)}, TypeError, "dumps and loads, as json"),
            ({"timeout": 3}, TypeError, "timeout= is refused"),
            ({"release": "commit"}, TypeError, "has no argument 'release'"),
        ],
        ids=str,
    )
    def test_arguments(self, arguments: Any, error: Any, match: str) -> None:
        """Each is named, with what to write, where it is written."""
        with pytest.raises(error, match=match):
            single_flight("rates", **arguments)

    def test_a_name_that_is_missing(self) -> None:
        """Results of different arguments would be taken for one."""
        with pytest.raises(TypeError, match=r"@single_flight\('rates:\{currency\}'\)"):
            single_flight()(lambda currency: currency)
        with pytest.raises(ValueError, match="needs the argument 'currency'"):
            single_flight("rates:{currency}")(lambda: None)
        with pytest.raises(TypeError, match="single_flight needs its parentheses"):
            single_flight(lambda: "x")()

    def test_generators(self) -> None:
        """They have no one result."""

        def generator() -> Iterator[int]:
            yield 1

        async def asynchronous() -> AsyncIterator[int]:
            yield 1

        for function in (generator, asynchronous):
            with pytest.raises(TypeError, match="single_flight shares one result"):
                single_flight("rates")(function)

    def test_a_serializer_that_makes_something_else(self) -> None:
        """Text or bytes, and nothing else, can be written."""
        odd = SimpleNamespace(dumps=lambda result: 7, loads=lambda text: text)
        with pytest.raises(TypeError, match="can't be shared: dumps returned int"):
            single_flight("rates", serializer=odd)(lambda: 1)()

    async def test_in_an_event_loop(self) -> None:
        """A function that waits would stop it."""
        with pytest.raises(SynchronousOnlyOperation):
            single_flight("rates")(lambda: 1)()
