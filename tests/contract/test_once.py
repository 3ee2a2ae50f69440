"""What `once` and `deduplicate` owe, through both ports, on a real Redis."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    LeaseLost,
    LeaseRevoked,
    LockNotAcquired,
    LockReentered,
    current_lease,
    deduplicate,
    once,
    redis_lock,
)
from django_redislock.base.exceptions import LockError
from tests.contract.ports import Port, SyncPort
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{once:job}"
RECORD = f"{KEY}:record"


class Work:
    """The body of a block: it waits until it is let go, where that is asked for."""

    def __init__(self, *, waits: bool = False, error: Exception | None = None) -> None:
        self.runs = 0
        self.begun = threading.Event()
        self.may_end = threading.Event()
        if not waits:
            self.may_end.set()
        self._error = error

    def __call__(self, first: bool) -> bool:
        assert first is True or first is False
        if first:
            self.runs += 1
            self.begun.set()
            assert self.may_end.wait(PATIENCE)
            if self._error is not None:
                raise self._error
        return first


def is_free(redis: Redis) -> bool:
    return not redis.exists(KEY) and redis.zscore("redislock:index", "once:job") is None


class TestOnce:
    def test_the_first_and_the_others(self, port: Port, redis: Redis) -> None:
        """It is done by one, for good, and leaves no lock."""
        work = Work()
        assert port.enter(once("job"), work) is True
        assert port.enter(once("job"), work) is False
        assert port.enter(once("another job"), work) is True
        assert work.runs == 2
        assert redis.ttl(RECORD) == -1
        assert is_free(redis)

    def test_for_a_while(self, port: Port, redis: Redis) -> None:
        """After `ttl` seconds it may be done again."""
        port.enter(once("job", ttl=3600), Work())
        assert 3500 < redis.ttl(RECORD) <= 3600
        redis.pexpire(RECORD, 1)
        eventually(lambda: not redis.exists(RECORD))
        assert port.enter(once("job", ttl=3600), Work()) is True

    def test_many_at_a_time(self, port: Port) -> None:
        """Of twenty, one is the first; those who wait all find it done."""
        work = Work()
        begin = threading.Barrier(20, timeout=PATIENCE)

        def enter() -> Any:
            begin.wait()
            return port.enter(once("job", wait=PATIENCE), work)

        answers = [threads.result(PATIENCE) for threads in [port.start(enter) for _ in range(20)]]
        assert sorted(answers) == [False] * 19 + [True]
        assert work.runs == 1

    def test_an_exception_frees_it(self, port: Port, redis: Redis) -> None:
        """It comes out, nothing was done, and the next one is the first again."""
        with pytest.raises(ZeroDivisionError):
            port.enter(once("job"), Work(error=ZeroDivisionError()))
        assert is_free(redis)
        assert port.enter(once("job"), Work()) is True

    def test_others_skip_while_it_runs(self, port: Port) -> None:
        """Who does not wait has nothing to do."""
        work = Work(waits=True)
        first = port.start(lambda: port.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        assert port.enter(once("job"), work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True

    def test_others_wait_until_it_is_done(self, port: Port, redis: Redis) -> None:
        """And then have nothing to do."""
        work = Work(waits=True)
        first = port.start(lambda: port.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        others = [port.start(lambda: port.enter(once("job", wait=None), work)) for _ in range(3)]
        eventually(lambda: redis.zcard(f"{KEY}:queue") == 3)
        assert not redis.exists(RECORD)
        work.may_end.set()
        assert [other.result(PATIENCE) for other in others] == [False] * 3
        assert first.result(PATIENCE) is True
        assert work.runs == 1

    def test_who_waits_does_it_when_the_first_fails(self, port: Port, redis: Redis) -> None:
        """One of those who wait, and the others wait for that one."""
        fails, work = Work(waits=True, error=ZeroDivisionError()), Work()
        first = port.start(lambda: port.enter(once("job"), fails))
        assert fails.begun.wait(PATIENCE)
        others = [port.start(lambda: port.enter(once("job", wait=None), work)) for _ in range(3)]
        eventually(lambda: redis.zcard(f"{KEY}:queue") == 3)
        fails.may_end.set()
        assert sorted(other.result(PATIENCE) for other in others) == [False, False, True]
        with pytest.raises(ZeroDivisionError):
            first.result(PATIENCE)

    @pytest.mark.parametrize(
        ("options", "raises"),
        [
            ({"wait": 0}, False),
            ({"wait": 0.05}, True),
            ({"wait": 0, "on_conflict": "raise"}, True),
            ({"wait": 0.05, "on_conflict": "skip"}, False),
        ],
        ids=str,
    )
    def test_when_the_wait_is_over(self, port: Port, options: Any, raises: bool) -> None:
        """Who has waited in vain is told who is at it, unless it wants to skip."""
        work = Work(waits=True)
        first = port.start(lambda: port.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        if raises:
            with pytest.raises(LockNotAcquired) as caught:
                port.enter(once("job", **options), work)
            assert "contract/ports.py" in caught.value.holder.label, "where the block stands"
        else:
            assert port.enter(once("job", **options), work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True

    def test_forget(self, port: Port, redis: Redis) -> None:
        """It may be done again, and forgetting what nobody did is nothing."""
        port.forget(once("job"))
        assert port.enter(once("job"), Work()) is True
        port.forget(once("job"))
        assert port.enter(once("job"), Work()) is True

    def test_inside_of_itself(self, port: Port) -> None:
        """It would wait for itself."""

        @once("job")
        async def recursive() -> None:
            await recursive()

        @once("job")
        def recursive_function() -> None:
            recursive_function()

        function = recursive_function if isinstance(port, SyncPort) else recursive
        with pytest.raises(LockReentered):
            port.call(function)

    def test_it_is_renewed(self, port: Port, redis: Redis, settings: Any) -> None:
        """For as long as the body runs."""
        settings.REDISLOCK = {"LOCKS": {"once:*": {"TTL": 2}}}

        def ends() -> float:
            return float(redis.zscore("redislock:index", "once:job") or 0)

        def body(first: bool) -> None:
            began = ends()
            eventually(lambda: ends() > began)

        port.enter(once("job"), body)
        assert redis.get(RECORD) == b"done"

    @pytest.mark.parametrize("how", ["cleared", "deleted"])
    def test_a_lost_lease(self, port: Port, redis: Redis, how: str) -> None:
        """Others may be at it, so it is not done, and the block says so."""

        def body(first: bool) -> None:
            if how == "cleared":
                redis_lock("once:job").clear(reason="test", by="eva")
            else:
                redis.delete(KEY)

        with pytest.raises(LeaseRevoked if how == "cleared" else LeaseLost):
            port.enter(once("job"), body)
        assert not redis.exists(RECORD)
        assert port.enter(once("job"), Work()) is True

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_what_is_done_takes_no_lock(self, port: Port, redis: Redis) -> None:
        """The common case is one round trip."""
        port.enter(once("job"), Work())
        before = round_trips(redis)
        for _ in range(5):
            port.enter(once("job"), Work())
        assert round_trips(redis) - before == 5

    def test_one_object_for_many(self, port: Port) -> None:
        """Threads and tasks may share it, and leave in any order."""
        shared = once("job")
        work = Work(waits=True)
        first = port.start(lambda: port.enter(shared, work))
        assert work.begun.wait(PATIENCE)
        assert port.enter(shared, work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True
        assert shared._entered == []


class TestLose:
    def test_an_exception(self, port: Port, redis: Redis) -> None:
        """Nobody tries again, for `ttl` seconds."""
        job = once("job", ttl=3600, on_failure="lose")
        with pytest.raises(ZeroDivisionError):
            port.enter(job, Work(error=ZeroDivisionError()))
        assert port.enter(job, Work()) is False
        assert 3500 < redis.ttl(RECORD) <= 3600
        assert is_free(redis)

    def test_others_wait_all_the_same(self, port: Port, redis: Redis) -> None:
        """What is begun is not done yet; when it has failed, there is nothing to wait for."""
        work = Work(waits=True, error=ZeroDivisionError())
        first = port.start(lambda: port.enter(once("job", on_failure="lose"), work))
        assert work.begun.wait(PATIENCE)
        assert redis.exists(RECORD)
        waits = once("job", on_failure="lose", wait=None)
        other = port.start(lambda: port.enter(waits, work))
        eventually(lambda: redis.zcard(f"{KEY}:queue") == 1)
        work.may_end.set()
        assert other.result(PATIENCE) is False
        with pytest.raises(ZeroDivisionError):
            first.result(PATIENCE)


class TestDecorated:
    def test_each_name_once(self, port: Port, redis: Redis) -> None:
        """The first call returns what the function returns, the others None."""
        runs: list[int] = []

        def body(shop: int) -> int:
            runs.append(shop)
            assert current_lease().name == f"once:import:{shop}"
            return shop * 10

        @once("import:{shop}", ttl=60)
        def function(shop: int) -> int:
            return body(shop)

        @once("import:{shop}", ttl=60)
        async def coroutine(shop: int) -> int:
            return body(shop)

        work = function if isinstance(port, SyncPort) else coroutine
        assert [port.call(work, shop) for shop in (1, 2, 1, 2)] == [10, 20, None, None]
        assert runs == [1, 2]
        port.forget(once("import:1"))
        assert port.call(work, 1) == 10

    def test_an_exception(self, port: Port) -> None:
        """It comes out, and the next call is the first again."""
        errors = [ZeroDivisionError()]

        def body() -> str:
            if errors:
                raise errors.pop()
            return "done"

        work = once("job")(port.function(body))
        with pytest.raises(ZeroDivisionError):
            port.call(work)
        assert port.call(work) == "done"
        assert port.call(work) is None


class TestDeduplicate:
    def test_a_message(self, port: Port, redis: Redis) -> None:
        """It is processed once, and remembered for a day."""
        assert port.enter(deduplicate("m-1"), Work()) is True
        assert port.enter(deduplicate("m-1"), Work()) is False
        assert 86_000 < redis.ttl("redislock:{deduplicate:m-1}:record") <= 86_400
        assert port.enter(deduplicate("m-1", 60), Work()) is False
        port.forget(deduplicate("m-1"))
        assert port.enter(deduplicate("m-1", 60), Work()) is True
        assert redis.ttl("redislock:{deduplicate:m-1}:record") <= 60

    def test_a_consumer_that_fails(self, port: Port) -> None:
        """Another one processes it."""
        with pytest.raises(ZeroDivisionError):
            port.enter(deduplicate("m-1"), Work(error=ZeroDivisionError()))
        assert port.enter(deduplicate("m-1"), Work()) is True

    def test_while_another_is_at_it(self, port: Port) -> None:
        """The consumer is told, so that it does not acknowledge what may still fail."""
        work = Work(waits=True)
        consume = deduplicate("{message[id]}")

        @consume
        def function(message: dict[str, str]) -> bool:
            return work(True)

        @consume
        async def coroutine(message: dict[str, str]) -> bool:
            raise AssertionError

        first = port.start(lambda: function({"id": "m-1"}))
        assert work.begun.wait(PATIENCE)
        chosen = function if isinstance(port, SyncPort) else coroutine
        with pytest.raises(LockNotAcquired, match="'deduplicate:m-1' is held by"):
            port.call(chosen, {"id": "m-1"})
        work.may_end.set()
        assert first.result(PATIENCE) is True
        assert port.call(chosen, {"id": "m-1"}) is None


def test_nothing_is_current_where_it_is_done(port: Port) -> None:
    """A block that has nothing to do holds no lock."""
    port.enter(once("job"), Work())

    def body(first: bool) -> None:
        with pytest.raises(LockError):
            current_lease()

    port.enter(once("job"), body)
