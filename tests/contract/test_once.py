"""What `once` and `deduplicate` owe, sync and async, on a real Redis."""

from __future__ import annotations

import threading
import time
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
from django_redislock.base import people
from django_redislock.base.exceptions import LockError
from django_redislock.locks import once as only_once
from tests.contract.api import Api, Computation, SyncApi, queued
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{once:job}"
RECORD = f"{KEY}:record"


class Work(Computation):
    """The body of a block."""

    def __call__(self, first: bool) -> bool:
        assert first is True or first is False
        if first:
            super().__call__()
        return first


def is_free(redis: Redis) -> bool:
    return (
        not redis.exists(KEY) and redis.zscore("redislock:index", "redislock:{once:job}") is None
    )


class TestOnce:
    def test_the_first_and_the_others(self, api: Api, redis: Redis) -> None:
        """One caller does the work, for good, and no lock is left."""
        work = Work()
        assert api.enter(once("job"), work) is True
        assert api.enter(once("job"), work) is False
        assert api.enter(once("another job"), work) is True
        assert work.runs == 2
        assert redis.ttl(RECORD) == -1
        assert is_free(redis)

    def test_for_a_while(self, api: Api, redis: Redis) -> None:
        """After `ttl` seconds it may be done again."""
        api.enter(once("job", ttl=3600), Work())
        assert 3500 < redis.ttl(RECORD) <= 3600
        redis.pexpire(RECORD, 1)
        eventually(lambda: not redis.exists(RECORD))
        assert api.enter(once("job", ttl=3600), Work()) is True

    def test_many_at_a_time(self, api: Api) -> None:
        """Of twenty callers one is the first; the waiters find the work done."""
        work = Work()
        begin = threading.Barrier(20, timeout=PATIENCE)

        def enter() -> Any:
            begin.wait()
            return api.enter(once("job", wait=PATIENCE), work)

        answers = [threads.result(PATIENCE) for threads in [api.start(enter) for _ in range(20)]]
        assert sorted(answers) == [False] * 19 + [True]
        assert work.runs == 1

    def test_an_exception_frees_it(self, api: Api, redis: Redis) -> None:
        """It comes out, nothing was done, and the next one is the first again."""
        with pytest.raises(ZeroDivisionError):
            api.enter(once("job"), Work(error=ZeroDivisionError()))
        assert is_free(redis)
        assert api.enter(once("job"), Work()) is True

    def test_others_skip_while_it_runs(self, api: Api) -> None:
        """A caller that does not wait has nothing to do."""
        work = Work(waits=True)
        first = api.start(lambda: api.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        assert api.enter(once("job"), work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True

    @pytest.mark.parametrize("kind", [once, deduplicate])
    def test_others_with_the_same_owner(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, kind: type[once]
    ) -> None:
        """Containers may have one host name and one process id, and threads one name. So a text
        says nothing of who holds the lock: such a caller does not wait either."""
        monkeypatch.setattr(people, "owner", lambda of: "web:1:MainThread")
        monkeypatch.setattr(only_once, "ROLLBACK_RELEASE", PATIENCE)
        work = Work(waits=True)
        first = api.start(lambda: api.enter(kind("job"), work))
        assert work.begun.wait(PATIENCE)
        began = time.monotonic()
        assert api.enter(kind("job", on_conflict="skip"), work) is False
        assert time.monotonic() - began < PATIENCE / 3
        work.may_end.set()
        assert first.result(PATIENCE) is True

    def test_others_wait_until_it_is_done(self, api: Api, redis: Redis) -> None:
        """Waiters have nothing to do when the work is done."""
        work = Work(waits=True)
        first = api.start(lambda: api.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        others = [api.start(lambda: api.enter(once("job", wait=None), work)) for _ in range(3)]
        queued(redis, "once:job", 3)
        assert not redis.exists(RECORD)
        work.may_end.set()
        assert [other.result(PATIENCE) for other in others] == [False] * 3
        assert first.result(PATIENCE) is True
        assert work.runs == 1

    def test_who_waits_does_it_when_the_first_fails(self, api: Api, redis: Redis) -> None:
        """One of the waiters does the work, and the others wait for that one."""
        fails, work = Work(waits=True, error=ZeroDivisionError()), Work()
        first = api.start(lambda: api.enter(once("job"), fails))
        assert fails.begun.wait(PATIENCE)
        others = [api.start(lambda: api.enter(once("job", wait=None), work)) for _ in range(3)]
        queued(redis, "once:job", 3)
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
    def test_when_the_wait_is_over(self, api: Api, options: Any, raises: bool) -> None:
        """A caller that has waited in vain learns who works, unless it wants to skip."""
        work = Work(waits=True)
        first = api.start(lambda: api.enter(once("job"), work))
        assert work.begun.wait(PATIENCE)
        if raises:
            with pytest.raises(LockNotAcquired) as caught:
                api.enter(once("job", **options), work)
            assert "contract/api.py" in caught.value.holder.label, "where the block stands"
        else:
            assert api.enter(once("job", **options), work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True

    def test_forget(self, api: Api, redis: Redis) -> None:
        """After `forget` the work may be done again. It is no error if nobody has done it."""
        api.forget(once("job"))
        assert api.enter(once("job"), Work()) is True
        api.forget(once("job"))
        assert api.enter(once("job"), Work()) is True

    def test_inside_of_itself(self, api: Api) -> None:
        """The work would wait for itself."""

        @once("job")
        async def recursive() -> None:
            await recursive()

        @once("job")
        def recursive_function() -> None:
            recursive_function()

        function = recursive_function if isinstance(api, SyncApi) else recursive
        with pytest.raises(LockReentered):
            api.call(function)

    def test_it_is_renewed(self, api: Api, redis: Redis, settings: Any) -> None:
        """The lease is renewed as long as the body runs."""
        settings.REDISLOCK = {"LOCKS": {"once:*": {"TTL": 2}}}

        def ends() -> float:
            return float(redis.pexpiretime("redislock:{once:job}") or 0)

        def body(first: bool) -> None:
            began = ends()
            eventually(lambda: ends() > began)

        api.enter(once("job"), body)
        assert redis.get(RECORD) == b"done"

    @pytest.mark.parametrize("how", ["cleared", "deleted"])
    def test_a_lost_lease(self, api: Api, redis: Redis, how: str) -> None:
        """Others may do the work meanwhile, so it is not recorded as done, and the block
        raises."""

        def body(first: bool) -> None:
            if how == "cleared":
                redis_lock("once:job").clear(reason="test", by="eva")
            else:
                redis.delete(KEY)

        with pytest.raises(LeaseRevoked if how == "cleared" else LeaseLost):
            api.enter(once("job"), body)
        assert not redis.exists(RECORD)
        assert api.enter(once("job"), Work()) is True

    @pytest.mark.usefixtures("no_signs_of_life")
    def test_what_is_done_takes_no_lock(self, api: Api, redis: Redis) -> None:
        """If the work is done, a call costs one round trip."""
        api.enter(once("job"), Work())
        before = round_trips(redis)
        for _ in range(5):
            api.enter(once("job"), Work())
        assert round_trips(redis) - before == 5

    def test_one_object_for_many(self, api: Api) -> None:
        """Threads and tasks may share it, and leave in any order."""
        shared = once("job")
        work = Work(waits=True)
        first = api.start(lambda: api.enter(shared, work))
        assert work.begun.wait(PATIENCE)
        assert api.enter(shared, work) is False
        work.may_end.set()
        assert first.result(PATIENCE) is True
        assert not shared._entered


class TestLose:
    def test_an_exception(self, api: Api, redis: Redis) -> None:
        """Nobody tries again, for `ttl` seconds."""
        job = once("job", ttl=3600, on_failure="lose")
        with pytest.raises(ZeroDivisionError):
            api.enter(job, Work(error=ZeroDivisionError()))
        assert api.enter(job, Work()) is False
        assert 3500 < redis.ttl(RECORD) <= 3600
        assert is_free(redis)

    def test_others_wait_all_the_same(self, api: Api, redis: Redis) -> None:
        """Work that has begun is not done yet, so others wait; when it has failed, they have
        nothing to do."""
        work = Work(waits=True, error=ZeroDivisionError())
        first = api.start(lambda: api.enter(once("job", on_failure="lose"), work))
        assert work.begun.wait(PATIENCE)
        assert redis.exists(RECORD)
        waits = once("job", on_failure="lose", wait=None)
        other = api.start(lambda: api.enter(waits, work))
        queued(redis, "once:job", 1)
        work.may_end.set()
        assert other.result(PATIENCE) is False
        with pytest.raises(ZeroDivisionError):
            first.result(PATIENCE)


class TestDecorated:
    def test_each_name_once(self, api: Api, redis: Redis) -> None:
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

        work = function if isinstance(api, SyncApi) else coroutine
        assert [api.call(work, shop) for shop in (1, 2, 1, 2)] == [10, 20, None, None]
        assert runs == [1, 2]
        api.forget(once("import:1"))
        assert api.call(work, 1) == 10

    def test_an_exception(self, api: Api) -> None:
        """It comes out, and the next call is the first again."""
        errors = [ZeroDivisionError()]

        def body() -> str:
            if errors:
                raise errors.pop()
            return "done"

        work = once("job")(api.function(body))
        with pytest.raises(ZeroDivisionError):
            api.call(work)
        assert api.call(work) == "done"
        assert api.call(work) is None


class TestDeduplicate:
    def test_a_message(self, api: Api, redis: Redis) -> None:
        """It is processed once, and remembered for a day."""
        assert api.enter(deduplicate("m-1"), Work()) is True
        assert api.enter(deduplicate("m-1"), Work()) is False
        assert 86_000 < redis.ttl("redislock:{deduplicate:m-1}:record") <= 86_400
        assert api.enter(deduplicate("m-1", 60), Work()) is False
        api.forget(deduplicate("m-1"))
        assert api.enter(deduplicate("m-1", 60), Work()) is True
        assert redis.ttl("redislock:{deduplicate:m-1}:record") <= 60

    def test_while_another_is_at_it(self, api: Api) -> None:
        """The consumer gets an error, so that it does not acknowledge a message that may still
        fail."""
        work = Work(waits=True)
        consume = deduplicate("{message[id]}")

        @consume
        def function(message: dict[str, str]) -> bool:
            return work(True)

        @consume
        async def coroutine(message: dict[str, str]) -> bool:
            raise AssertionError

        first = api.start(lambda: function({"id": "m-1"}))
        assert work.begun.wait(PATIENCE)
        chosen = function if isinstance(api, SyncApi) else coroutine
        with pytest.raises(LockNotAcquired, match="'deduplicate:m-1' is held by"):
            api.call(chosen, {"id": "m-1"})
        work.may_end.set()
        assert first.result(PATIENCE) is True
        assert api.call(chosen, {"id": "m-1"}) is None


def test_nothing_is_current_where_it_is_done(api: Api) -> None:
    """A block that has nothing to do holds no lock."""
    api.enter(once("job"), Work())

    def body(first: bool) -> None:
        with pytest.raises(LockError):
            current_lease()

    api.enter(once("job"), body)
