"""What `initialise` owes, sync and async, on a real Redis."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from redis import Redis

from django_redislock import initialise
from tests.contract.api import Api, SyncApi
from tests.contract.test_mutex import round_trips
from tests.waiting import PATIENCE, eventually

RECORD = "redislock:{initialise:salt}:record"


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None]}, "ünïcode\0", 0, None, False, ""], ids=repr
)
def test_the_first_value_stands(api: Api, redis: Redis, value: Any) -> None:
    """All callers get the first value, for good. It may be whatever JSON can write."""
    assert api.initialise("salt", value) == value
    assert api.initialise("salt", "another") == value
    assert redis.ttl(RECORD) == -1
    assert api.initialise("pepper", "another") == "another"


def test_as_json_reads_it(api: Api) -> None:
    """The caller that gave the value gets what the others get."""
    assert api.initialise("salt", (1, 2)) == [1, 2]


def test_for_a_while(api: Api, redis: Redis) -> None:
    """After `ttl` seconds there is no value."""
    api.initialise("salt", 1, ttl=3600)
    assert 3500 < redis.ttl(RECORD) <= 3600
    redis.pexpire(RECORD, 1)
    eventually(lambda: not redis.exists(RECORD))
    assert api.initialise("salt", 2) == 2


def test_a_function(api: Api) -> None:
    """It is called only when no value stands."""
    calls: list[int] = []

    def make() -> int:
        calls.append(1)
        return len(calls)

    assert [api.initialise("salt", make) for _ in range(3)] == [1, 1, 1]
    assert calls == [1]


def test_a_coroutine_function(api: Api) -> None:
    """A coroutine may make the value for coroutines; a plain function can't wait for it."""

    async def make() -> str:
        return "made"

    if isinstance(api, SyncApi):
        with pytest.raises(TypeError, match=r"coroutine function: await ainitialise\(\)"):
            api.initialise("salt", make)
    else:
        assert api.initialise("salt", make) == "made"


def test_many_at_a_time(api: Api) -> None:
    """All callers get one value."""
    begin = threading.Barrier(10, timeout=PATIENCE)

    def give(number: int) -> Any:
        begin.wait()
        return api.initialise("salt", lambda: number)

    threads = [api.start(lambda number=number: give(number)) for number in range(10)]
    values = {thread.result(PATIENCE) for thread in threads}
    assert len(values) == 1
    assert values < set(range(10))


def test_one_round_trip(api: Api, redis: Redis) -> None:
    """A call costs one round trip, and takes no lock."""
    api.initialise("warm up", 1)
    before = round_trips(redis)
    api.initialise("salt", 1)
    api.initialise("salt", 2)
    assert round_trips(redis) - before == 2
    assert not redis.exists("redislock:{initialise:salt}")


@pytest.mark.parametrize(
    ("name", "value", "options", "error", "match"),
    [
        ("", 1, {}, ValueError, "name is empty"),
        ("a{b}", 1, {}, ValueError, "name contains a brace"),
        (7, 1, {}, TypeError, "name must be a str"),
        ("salt", 1, {"ttl": 0}, ValueError, r"ttl must be between .* or None \(no limit\)"),
        ("salt", 1, {"ttl": "day"}, TypeError, "ttl must be a number of seconds"),
        ("salt", 1, {"using": None}, TypeError, "using must be an alias of CACHES"),
        ("salt", 1, {"timeout": 3}, TypeError, "timeout= is refused"),
        ("salt", 1, {"wait": 3}, TypeError, "has no argument 'wait'"),
        ("salt", {1, 2}, {}, TypeError, "value of 'salt' must be what JSON can write"),
        ("salt", object, {}, TypeError, "value of 'salt' must be what JSON can write"),
    ],
)
def test_bad_input(
    api: Api, redis: Redis, name: Any, value: Any, options: Any, error: Any, match: str
) -> None:
    """The error names the argument and says what to write, and nothing is set."""
    with pytest.raises(error, match=match):
        api.initialise(name, value, **options)
    assert not redis.keys("redislock:*:record")


def test_settings(redis: Redis, settings: Any) -> None:
    """The cache and the prefix are those of a lock of this name."""
    settings.REDISLOCK = {"PREFIX": "redislock-other"}
    initialise("salt", 1)
    assert redis.get("redislock-other:{initialise:salt}:record") == b"1"
