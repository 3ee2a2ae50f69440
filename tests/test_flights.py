"""`single_flight` in one process: who computes when the first is cut short, forms, bad input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from redis import Redis

from django_redislock import single_flight
from django_redislock.locks import single_flight as flights
from tests.contract.test_single_flight import followers
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
