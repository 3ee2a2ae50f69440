"""What `single_flight` owes, sync and async, on a real Redis."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from django_redislock import (
    ComputationFailed,
    LockNotAcquired,
    LockReentered,
    redis_lock,
    single_flight,
)
from django_redislock.locks import single_flight as flights_module
from tests.contract.api import Api, Computation, SyncApi, queued
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually

NAME = "single_flight:rates"
KEY = f"redislock:{{{NAME}}}"
RECORD = f"{KEY}:record"


@pytest.fixture
def elsewhere(api: Api) -> Callable[..., Callable[[], Any]]:
    """Make a function of its own that computes: as another process has it, nothing is shared
    within this one."""

    def make(body: Callable[[], Any], **options: Any) -> Callable[[], Any]:
        function = single_flight("rates", **options)(api.function(body))
        return lambda: api.call(function)

    return make


Elsewhere = Callable[..., Callable[[], Any]]


class TestShared:
    def test_across_processes(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """All callers that came meanwhile have the result, and nothing is locked any more."""
        computation = Computation(waits=True)
        first = api.start(elsewhere(computation))
        assert computation.begun.wait(PATIENCE)
        others = [api.start(elsewhere(computation)) for _ in range(4)]
        queued(redis, NAME, 4)
        computation.may_end.set()
        assert [call.result(PATIENCE) for call in (first, *others)] == [{"run": 1}] * 5
        assert computation.runs == 1
        eventually(lambda: not redis.exists(KEY, f"{KEY}:queue"))

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_within_a_process(self, api: Api, redis: Redis) -> None:
        """All but one wait without a request of their own."""
        computation = Computation(waits=True)
        function = single_flight("rates")(api.function(computation))
        first = api.start(lambda: api.call(function))
        assert computation.begun.wait(PATIENCE)
        before = round_trips(redis)
        others = [api.start(lambda: api.call(function)) for _ in range(20)]
        (flight,) = flights_module._calls.values()
        waiting = flight.ended
        eventually(lambda: followers(waiting) == 20)
        assert round_trips(redis) == before
        computation.may_end.set()
        results = [call.result(PATIENCE) for call in (first, *others)]
        assert results == [{"run": 1}] * 21
        assert len({id(result) for result in results}) == 21, "each has its own"
        assert not flights_module._calls

    def test_later_callers_compute_again(
        self, api: Api, redis: Redis, elsewhere: Elsewhere
    ) -> None:
        """Without a ttl only waiters have the result, and its record goes by itself."""
        computation = Computation()
        call = elsewhere(computation)
        assert [call(), call(), elsewhere(computation)()] == [{"run": 1}, {"run": 2}, {"run": 3}]
        assert 0 < redis.ttl(RECORD) <= 30

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_kept(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """With a ttl later callers have the result, too, without the lock."""
        computation = Computation()
        call = elsewhere(computation, ttl=3600)
        assert call() == {"run": 1}
        before = round_trips(redis)
        assert [call() for _ in range(3)] == [{"run": 1}] * 3
        assert round_trips(redis) - before == 3
        assert 3500 < redis.ttl(RECORD) <= 3600
        redis.pexpire(RECORD, 1)
        eventually(lambda: not redis.exists(RECORD))
        assert call() == {"run": 2}

    def test_what_was_there_before_is_no_answer(
        self, api: Api, redis: Redis, elsewhere: Elsewhere
    ) -> None:
        """A caller that waited for a computation without a result computes, and does not take an
        older result."""
        computation = Computation()
        elsewhere(computation)()
        crashed = redis_lock(NAME).acquire()
        waits = api.start(elsewhere(computation))
        queued(redis, NAME, 1)
        crashed.release()
        assert waits.result(PATIENCE) == {"run": 2}

    def test_names(self, api: Api) -> None:
        """Calls with different names have nothing to do with each other."""
        seen: list[int] = []

        @single_flight("rates:{number}", ttl=60)
        def function(number: int) -> int:
            seen.append(number)
            return number

        @single_flight("rates:{number}", ttl=60)
        async def coroutine(number: int) -> int:
            return function.__wrapped__(number)  # type: ignore[attr-defined, no-any-return]

        chosen = function if isinstance(api, SyncApi) else coroutine
        assert [api.call(chosen, number) for number in (1, 2, 1)] == [1, 2, 1]
        assert seen == [1, 2]


def followers(future: Future[Any]) -> int:
    """How many wait for a flight of this process: threads, or tasks."""
    inside: Any = future
    with inside._condition:
        return len(inside._condition._waiters) + len(inside._done_callbacks)


def grow_old(redis: Redis) -> None:
    """Let the record have 200 of its 360 seconds left, as 100 s after its ttl of 60."""
    assert redis.pexpire(RECORD, 200_000)


class TestStale:
    """With ttl=60 and stale=300."""

    @pytest.fixture
    def call(self, elsewhere: Elsewhere, computation: Computation) -> Callable[[], Any]:
        return elsewhere(computation, ttl=60, stale=300)

    @pytest.fixture
    def computation(self) -> Computation:
        return Computation()

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_while_it_is_fresh(
        self, call: Callable[[], Any], computation: Computation, redis: Redis
    ) -> None:
        """As without it: one request, and nobody computes."""
        assert call() == {"run": 1}
        assert 359_000 < redis.pttl(RECORD) <= 360_000
        redis.pexpire(RECORD, 300_500)
        before = round_trips(redis)
        assert [call() for _ in range(3)] == [{"run": 1}] * 3
        assert round_trips(redis) - before == 3
        assert computation.runs == 1

    def test_while_it_is_old(
        self, api: Api, call: Callable[[], Any], computation: Computation, redis: Redis
    ) -> None:
        """All callers have the old result at once, and one computation makes the new one."""
        call()
        grow_old(redis)
        computation.may_end.clear()
        computation.begun.clear()
        assert call() == {"run": 1}
        assert computation.begun.wait(PATIENCE)
        assert redis_lock(NAME).locked()
        assert [call() for _ in range(5)] == [{"run": 1}] * 5
        computation.may_end.set()
        assert eventually(lambda: (got := call()) != {"run": 1} and got) == {"run": 2}
        assert 359_000 < redis.pttl(RECORD) <= 360_000
        eventually(lambda: not redis_lock(NAME).locked() and not flights_module._calls)
        assert computation.runs == 2

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_many_at_once(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """In several processes, too: one of them computes, and nobody waits for it."""
        computation = Computation()
        elsewhere(computation, ttl=60, stale=300)()
        grow_old(redis)
        computation.may_end.clear()
        calls = [elsewhere(computation, ttl=60, stale=300) for _ in range(8)]
        results = [api.start(call) for call in calls * 2]
        assert [result.result(PATIENCE) for result in results] == [{"run": 1}] * 16
        eventually(lambda: len(flights_module._calls) == 1)
        before = round_trips(redis)
        assert [call() for call in calls] == [{"run": 1}] * 8
        assert round_trips(redis) - before == 8, "nobody tries to compute, too"
        computation.may_end.set()
        assert eventually(lambda: (got := calls[0]()) != {"run": 1} and got) == {"run": 2}
        eventually(lambda: not flights_module._calls)
        assert computation.runs == 2

    def test_after_its_end(
        self, call: Callable[[], Any], computation: Computation, redis: Redis
    ) -> None:
        """There is nothing to give, so the caller computes."""
        call()
        redis.delete(RECORD)
        assert call() == {"run": 2}

    @pytest.mark.parametrize("error", [ValueError("no"), TimeoutError(), OSError()], ids=repr)
    def test_an_exception(
        self,
        call: Callable[[], Any],
        computation: Computation,
        redis: Redis,
        caplog: pytest.LogCaptureFixture,
        error: Exception,
    ) -> None:
        """It is logged, and the old result stays. The next caller tries again."""
        call()
        grow_old(redis)
        computation.error = error
        assert call() == {"run": 1}
        (record,) = eventually(lambda: [one for one in caplog.records if one.exc_info])
        assert repr(record.exc_info[1]) == repr(error)  # asyncio copies a TimeoutError
        assert record.message.startswith(f"{NAME!r} was not computed anew; its old result stays")
        eventually(lambda: not redis_lock(NAME).locked() and not flights_module._calls)
        assert 190_000 < redis.pttl(RECORD) <= 200_000
        computation.error = None
        assert call() == {"run": 1}
        assert eventually(lambda: (got := call()) != {"run": 1} and got) == {"run": 3}

    def test_a_result_that_can_not_be_shared(
        self, redis: Redis, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As an exception."""
        results: list[Any] = [1, {2}]
        call = elsewhere(lambda: results.pop(0), ttl=60, stale=300)
        assert call() == 1
        grow_old(redis)
        assert call() == 1
        eventually(lambda: "give single_flight another serializer" in caplog.text)
        assert b"|text|1" in redis.get(RECORD)

    def test_it_needs_its_own_result(self, api: Api, redis: Redis) -> None:
        """A computation in the background gets the old one."""

        @single_flight("rates", ttl=60, stale=300)
        def function() -> int:
            return function() + 1 if redis.exists(RECORD) else 1

        @single_flight("rates", ttl=60, stale=300)
        async def coroutine() -> int:
            return await coroutine() + 1 if redis.exists(RECORD) else 1

        chosen = function if isinstance(api, SyncApi) else coroutine
        assert api.call(chosen) == 1
        grow_old(redis)
        assert api.call(chosen) == 1
        assert eventually(lambda: (got := api.call(chosen)) != 1 and got) == 2

    @pytest.mark.parametrize("how", ["cleared", "deleted"])
    def test_a_lost_lease(
        self, redis: Redis, elsewhere: Elsewhere, how: str, call: Callable[[], Any]
    ) -> None:
        """Its result is for nobody."""
        call()
        grow_old(redis)
        done: list[str] = []

        def body() -> str:
            redis_lock(NAME).clear(reason="test") if how == "cleared" else redis.delete(KEY)
            done.append(how)
            return how

        assert elsewhere(body, ttl=60, stale=300)() == {"run": 1}
        eventually(lambda: done and not flights_module._calls)
        assert b'{"run": 1}' in redis.get(RECORD)

    def test_with_old_clients(self, redis: Redis, settings: Any, elsewhere: Elsewhere) -> None:
        """A lock that holds a timestamp key, too."""
        settings.REDISLOCK = {"LOCKS": {NAME: {"TIMESTAMP_KEY": "lock.rates"}}}
        computation = Computation()
        call = elsewhere(computation, ttl=60, stale=300)
        assert call() == {"run": 1}
        grow_old(redis)
        assert call() == {"run": 1}
        assert eventually(lambda: (got := call()) != {"run": 1} and got) == {"run": 2}

    def test_a_record_of_before(
        self, call: Callable[[], Any], redis: Redis, elsewhere: Elsewhere
    ) -> None:
        """A result that was kept without `stale` is given while it is there, and renewed."""
        assert elsewhere(lambda: "before", ttl=60)() == "before"
        assert call() == "before"
        assert eventually(lambda: (got := call()) != "before" and got) == {"run": 1}


class TestFailures:
    def test_an_exception(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """It is raised where it happened, and the waiters learn of it."""
        computation = Computation(waits=True, error=KeyError("EUR"))
        first = api.start(elsewhere(computation, ttl=60))
        assert computation.begun.wait(PATIENCE)
        others = [api.start(elsewhere(computation, ttl=60)) for _ in range(3)]
        queued(redis, NAME, 3)
        computation.may_end.set()
        with pytest.raises(KeyError):
            first.result(PATIENCE)
        for other in others:
            with pytest.raises(ComputationFailed, match="KeyError: 'EUR'") as caught:
                other.result(PATIENCE)
            assert (caught.value.error, caught.value.reason) == ("KeyError", "'EUR'")
            assert caught.value.name == NAME
            assert caught.value.owner
            assert vars(pickle.loads(pickle.dumps(caught.value))) == vars(caught.value)
        assert computation.runs == 1

    def test_it_is_not_kept(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """A later caller computes."""
        computation = Computation(error=ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            elsewhere(computation, ttl=60)()
        assert 0 < redis.ttl(RECORD) <= 30
        computation.error = None
        assert elsewhere(computation, ttl=60)() == {"run": 2}

    def test_within_a_process(self, api: Api) -> None:
        """The same error as elsewhere."""
        computation = Computation(waits=True, error=ZeroDivisionError("by zero"))
        function = single_flight("rates")(api.function(computation))
        first = api.start(lambda: api.call(function))
        assert computation.begun.wait(PATIENCE)
        other = api.start(lambda: api.call(function))
        (flight,) = flights_module._calls.values()
        eventually(lambda: followers(flight.ended) == 1)
        computation.may_end.set()
        with pytest.raises(ComputationFailed, match="ZeroDivisionError: by zero"):
            other.result(PATIENCE)
        with pytest.raises(ZeroDivisionError):
            first.result(PATIENCE)

    def test_a_message_that_fails(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """An error whose message can't be read is written without it, and a very long message is
        cut."""

        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        with pytest.raises(Odd):
            elsewhere(Computation(error=Odd()))()
        assert b"its message can't be read" in redis.get(RECORD)
        with pytest.raises(RuntimeError):
            elsewhere(Computation(error=RuntimeError("x" * 100_000)))()
        assert len(redis.get(RECORD)) < 2000

    def test_a_result_that_can_not_be_shared(
        self, api: Api, redis: Redis, elsewhere: Elsewhere
    ) -> None:
        """The error says what to write; waiters learn of it."""
        computation = Computation(waits=True)
        first = api.start(elsewhere(lambda: {computation()["run"]}))
        assert computation.begun.wait(PATIENCE)
        other = api.start(elsewhere(computation))
        queued(redis, NAME, 1)
        computation.may_end.set()
        with pytest.raises(TypeError, match="give single_flight another serializer"):
            first.result(PATIENCE)
        with pytest.raises(ComputationFailed, match="TypeError: The result of"):
            other.result(PATIENCE)

    def test_the_wait_is_over(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """The error says who computes, also within a process."""
        computation = Computation(waits=True)
        function = single_flight("rates", wait=0.05)(api.function(computation))
        first = api.start(lambda: api.call(function))
        assert computation.begun.wait(PATIENCE)
        for other in (lambda: api.call(function), elsewhere(computation, wait=0)):
            with pytest.raises(LockNotAcquired, match=f"'{NAME}' is held by") as caught:
                api.start(other).result(PATIENCE)
            assert caught.value.holder.label.startswith("contract/api.py")
        computation.may_end.set()
        assert first.result(PATIENCE) == {"run": 1}

    def test_it_needs_its_own_result(self, api: Api) -> None:
        """The computation would wait for itself."""

        @single_flight("rates", wait=None)
        def function() -> Any:
            return function()

        @single_flight("rates", wait=None)
        async def coroutine() -> Any:
            return await coroutine()

        chosen = function if isinstance(api, SyncApi) else coroutine
        with pytest.raises(LockReentered):
            api.start(lambda: api.call(chosen)).result(PATIENCE)

    @pytest.mark.parametrize("how", ["cleared", "deleted"])
    def test_a_lost_lease(self, api: Api, redis: Redis, elsewhere: Elsewhere, how: str) -> None:
        """The caller has the result, which is as good as any; nobody else has it."""

        def body() -> str:
            if how == "cleared":
                redis_lock(NAME).clear(reason="test")
            else:
                redis.delete(KEY)
            return "result"

        assert elsewhere(body, ttl=60)() == "result"
        assert not redis.exists(RECORD)


class TestSerializers:
    def test_as_json_reads_it(self, api: Api, elsewhere: Elsewhere) -> None:
        """The caller that computed the result gets what the others get."""
        assert elsewhere(lambda: (1, {2: "ü"}))() == [1, {"2": "ü"}]

    @pytest.mark.parametrize("result", [None, False, "", 0, []], ids=repr)
    def test_nothing_is_a_result(self, api: Api, elsewhere: Elsewhere, result: Any) -> None:
        """A false value is a result."""
        call = elsewhere(lambda: result, ttl=60)
        assert call() == call() == result

    def test_another_one(self, api: Api, redis: Redis, elsewhere: Elsewhere) -> None:
        """Bytes stay bytes, text is text."""
        of_bytes = SimpleNamespace(dumps=lambda result: b"|\xff" + result, loads=lambda b: b[2:])
        call = elsewhere(lambda: b"bytes", ttl=60, serializer=of_bytes)
        assert call() == call() == b"bytes"
        redis.delete(RECORD)
        of_text = SimpleNamespace(
            dumps=lambda result: json.dumps(sorted(result)), loads=lambda s: set(json.loads(s))
        )
        call = elsewhere(lambda: {2, 1}, ttl=60, serializer=of_text)
        assert call() == call() == {1, 2}


def test_settings(api: Api, settings: Any, elsewhere: Elsewhere) -> None:
    """The settings of its name apply; but it is never held until a commit."""
    settings.REDISLOCK = {
        "RELEASE": "commit",
        "ON_CONFLICT": "skip",
        "LOCKS": {"single_flight:*": {"TTL": 5, "WAIT": 0}},
    }
    computation = Computation(waits=True)
    first = api.start(elsewhere(computation))
    assert computation.begun.wait(PATIENCE)
    holder = redis_lock(NAME).holder()
    assert holder.remaining is not None
    assert holder.remaining <= 5
    with pytest.raises(LockNotAcquired):
        elsewhere(computation)()
    computation.may_end.set()
    first.result(PATIENCE)


@pytest.mark.django_db(transaction=True)
def test_it_is_not_held_until_a_commit(redis: Redis, settings: Any) -> None:
    """Others wait for the result, and not for the caller's transaction."""
    settings.REDISLOCK = {"RELEASE": "commit"}
    with transaction.atomic():
        assert single_flight("rates")(Computation().__call__)() == {"run": 1}
        assert not redis.exists(KEY)
