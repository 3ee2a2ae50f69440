"""The JSON of all subcommands is what docs/operations.md says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis

from django_redislock import LockError, LockUnavailable, ReadWriteLock, Semaphore, redis_lock
from django_redislock.inspection import Inspector, Listing
from django_redislock.tasks import limited, unique
from tests.operations.calling import Done, call, granted, strangers, write_down
from tests.operations.schema import Seen
from tests.processes import Worker
from tests.tasks.by_hand import task
from tests.tasks.test_operators import park
from tests.waiting import eventually

SETTINGS = {"TTL": 60, "ON_CONFLICT": print, "LOCKS": {"job": {"WAIT": None, "LIMIT": 3}}}


def test_keys_and_types(
    redis: Redis, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents have exactly the documented keys and types, and each documented type occurs."""
    seen = Seen()
    outcomes = set()

    def say(kind: str, *arguments: str) -> Done:
        done = call(*arguments, "--json")
        seen.check(kind, done.json)
        if kind == "clear":
            outcomes.update(item["outcome"] for item in done.json["items"])
        return done

    lease = redis_lock("job").acquire()
    waiter = start("wait")
    eventually(lambda: redis.zcard("redislock:{job}:queue"))
    granted(redis, "lost")
    granted(redis, "pausing", silent=25)
    strangers(redis)
    redis.lpush("redislock:{odd}", "x")
    shared = [
        Semaphore("exports", 3).acquire(),
        ReadWriteLock("catalogue").read().acquire(),
        ReadWriteLock("prices").write().acquire(),
    ]
    assert all(shared)

    listed = say("list output", "list", "--foreign").json
    kinds = {"mutex", "semaphore", "read", "write", "foreign", "timestamp"}
    assert {lock["kind"] for lock in listed["items"]} == kinds
    assert {lock["state"] for lock in listed["items"]} == {"held", "unknown", "stale"}
    assert say("list output", "list", "--pattern", "x").json["items"] == []
    say("show", "show", "job")
    for noted in ({"done": 1}, {"done": 1, "total": 3}):
        lease.checkpoint(**noted)
        say("show", "show", "job")
    with override_settings(REDISLOCK=SETTINGS):
        config = say("config", "config", "job").json["settings"]
    assert {setting["source"] for setting in config.values()} == {"default", "REDISLOCK", "LOCKS"}
    say("watch", "watch", "--count", "1")
    say("fence", "fence", "job", "--above", "1")

    say("clear", "clear", "job", "free")
    past = say("clear", "clear", "job", "--as-of", "2001-01-01T00:00:00Z").json
    assert past["items"][0]["outcome"] == "changed hands"
    reason = ("--yes", "--reason", "r")
    say("clear", "clear", "--stale", *reason)
    say("clear", "clear", "odd", *reason)
    lease.release()
    waiter.holds()
    assert say("show", "show", "job").json["past"]["lasted"] is not None
    waiter.go_on()
    waiter.ends()
    assert say("show", "show", "job").json["state"] == "free"
    say("show", "show", "never")
    park(limited("sync:{pk}", 2)(task(lambda pk: None)), 1)
    redis.hdel("redislock:{task:sync:7}:messages", "\tm3")  # as an older process parks it
    say("show", "show", "task:sync:7")
    unique("digest:{pk}", settle=9)(task(lambda pk: None)).enqueue(7)
    say("show", "show", "task:digest:7")
    say("show", "show", "task:nothing")
    redis_lock("expired", renew=False).acquire()
    write_down()
    redis.delete("redislock:{expired}")
    for name in ("expired", "lost"):
        (holder,) = say("show", "show", name).json["past"]["holders"]
        assert (holder["why"] is not None) == (name == "lost")

    def away(*_args: Any, **_options: Any) -> Any:
        raise LockUnavailable("away")

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise LockError("no")

    granted(redis, "lost")
    monkeypatch.setattr(Inspector, "clear", refuse)
    say("clear", "clear", "lost", *reason)
    monkeypatch.setattr(Inspector, "clear", away)
    say("clear", "clear", "lost", "legacy", *reason)
    monkeypatch.setattr(Listing, "page", away)
    say("watch", "watch", "--count", "1")

    assert seen.missing() == set()
    assert outcomes == {
        "would be cleared",
        "cleared",
        "changed hands",
        "free",
        "refused",
        "unknown",
        "not asked",
    }


def test_no_token(redis: Redis) -> None:
    """No output has a token, with which a reader could release the lock or continue its lease."""
    with redis_lock("job") as lease:
        redis.set("redislock:{legacy}", "secret-token", px=60_000)
        for arguments in (
            ["list", "--foreign"],
            ["show", "job"],
            ["show", "legacy"],
            ["clear", "job", "legacy"],
            ["watch", "--count", "1", "--foreign"],
        ):
            for form in ([], ["--json"]):
                out = call(*arguments, *form).out
                assert lease.token not in out
                assert "secret" not in out
