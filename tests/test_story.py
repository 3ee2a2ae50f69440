"""A lock in sentences: who holds it, whether it lives, what clearing does."""

from __future__ import annotations

import re

import pytest
from django.utils import translation
from redis import Redis

from django_redislock import redis_lock
from django_redislock.base.tokens import NO_PROCESS
from django_redislock.inspection import Inspector, LockInfo, WaiterInfo
from django_redislock.inspection.story import consequences, free_story, overlap, safer, story
from django_redislock.inspection.words import translated
from tests.operations.calling import granted, strangers
from tests.test_inspection import get


def told(lock: LockInfo, waiters: list[WaiterInfo] | None = None) -> str:
    return " ".join(story(lock, waiters or []))


def in_queue(redis: Redis, name: str, *owners: str, waited: float, silent: float = 0.0) -> None:
    seconds, micro = redis.time()
    seen = int((seconds - silent) * 1e6) + micro
    for number, owner in enumerate(owners):
        token = f"{number:032x}"
        arrived = int((seconds - waited) * 1e6) + micro + number
        redis.zadd(f"redislock:{{{name}}}:queue", {token: arrived})
        redis.hset(f"redislock:{{{name}}}:waiters", token, f"{seen}|10000||{owner}|b.py:2 in f")


def test_alive(redis: Redis) -> None:
    """A renewed lease: nobody knows when it ends; clearing it is not safe."""
    owner = "web-1:2080:MainThread"
    granted(
        redis, "job", silent=95, ttl=30, left=25.5, owner=owner, label="a.py:6 in f",
        process=NO_PROCESS,
    )  # fmt: skip
    in_queue(redis, "job", "web-3:2465:MainThread", "web-4:1:worker", waited=65)
    inspector = Inspector()
    lock, waiters = get(inspector, "job"), inspector.waiters("job")
    assert told(lock, waiters) == (
        "Held by web-1 · 2080 (a.py:6 in f) for 1 min 35 s. Its process is alive. Its lease is "
        "renewed; without renewal it ends in 25.5 s. Next: web-3 · 2465, waiting for 1 min 05 s, "
        "and 1 more."
    )
    assert " ".join(consequences(lock, waiters)) == (
        "web-1 · 2080 (a.py:6 in f) is alive; two may work at once for up to 10.0 s. Next: "
        "web-3 · 2465, waiting for 1 min 05 s, and 1 more."
    )
    assert safer(lock) == (
        "It is safer to end process 2080 on web-1: the lock is free within 30.0 s."
    )


def test_not_renewed(redis: Redis) -> None:
    """A holder that does not renew its lease may go on until the lease would have ended."""
    granted(redis, "job", silent=20, ttl=30, left=9.5, process=NO_PROCESS)
    lock = get(Inspector(), "job")
    assert 9 < overlap(lock.holders[0]) < 10
    assert "It frees itself in 9." in told(lock)
    assert " UTC." in told(lock)
    assert told(lock).endswith("Nobody waits.")


def test_dead(redis: Redis) -> None:
    """A stale lock: why, when it frees itself, and that clearing it is safe."""
    granted(redis, "job", silent=900, owner="web-1:2080:worker-7")
    lock = get(Inspector(), "job")
    assert "Held by web-1 · 2080 · worker-7 (its/job.py:1 in job) for 15 min 00 s." in told(lock)
    assert "It is stale: its process has shown no sign of life for 900 s." in told(lock)
    assert "It frees itself in 45 min 00 s, at " in told(lock)
    assert consequences(lock, [])[0].endswith("can’t come back, and loses nothing.")
    assert safer(lock) == "Clearing is safe: nobody works under this lock."


def test_silent_waiters(redis: Redis) -> None:
    """One that shows no sign of life is not the next one."""
    granted(redis, "job", process=NO_PROCESS)
    in_queue(redis, "job", "web-3:1:MainThread", waited=65, silent=60)
    lock, waiters = get(Inspector(), "job"), Inspector().waiters("job")
    assert told(lock, waiters).endswith("web-3 · 1 waits, and shows no sign of life.")
    in_queue(redis, "job", "web-3:1:MainThread", "web-3:2:x", waited=65, silent=60)
    lock, waiters = get(Inspector(), "job"), Inspector().waiters("job")
    assert told(lock, waiters).endswith("2 wait, and show no sign of life.")
    assert consequences(lock, waiters)[-1] == "2 wait, and show no sign of life."


def test_silent(redis: Redis) -> None:
    """A holder that has been silent for less than half a minute may come back."""
    granted(redis, "job", silent=25)
    lock = get(Inspector(), "job")
    assert "Whether it lives is unknown: its process has shown no sign of life for 25 s." in told(
        lock
    )
    assert "may be alive; then two may work at once" in consequences(lock, [])[0]


def test_several(redis: Redis) -> None:
    """Of several holders, the dead one is named first, whose clearing is still not safe for the
    one that lives."""
    granted(redis, "places", silent=5, places=3, owner="web-1:1:x")
    granted(redis, "places", silent=900, places=3, owner="web-2:2:x")
    lock = get(Inspector(), "places")
    assert "Held by 2 of 3; look first at web-2 · 2 · x " in told(lock)
    assert "web-1 · 1 · x (its/job.py:1 in job) is alive" in consequences(lock, [])[0]


def test_of_others(redis: Redis) -> None:
    """What another program wrote has no process that we know."""
    strangers(redis)
    legacy = get(Inspector(), "legacy")
    assert told(legacy).startswith("Held by another program. Whether it lives is not known.")
    assert consequences(legacy, [])[0] == (
        "another program is not told; two may work at once until it ends."
    )
    assert safer(legacy) == "It is safer to end the program that holds it."
    redis.persist("redislock:{legacy}")
    legacy = get(Inspector(), "legacy")
    assert "It has no TTL: it stays until somebody clears it." in told(legacy)


@pytest.mark.parametrize("language", ["de", "fr", "es", "zh-hans"])
def test_in_other_languages(redis: Redis, language: str) -> None:
    """Each sentence can be translated, with the sentences within it."""
    granted(redis, "job")
    lock = get(Inspector(), "job")
    sentences = [*story(lock, []), *consequences(lock, []), safer(lock)]
    with translation.override(language):
        assert all(translated(one) for one in sentences)


def test_free(redis: Redis) -> None:
    """Who was the last holder of a lock that nobody holds, and how that ended."""
    inspector = Inspector()
    assert free_story(inspector.past("job")) == ["Nobody holds it now."]
    with redis_lock("job", label="here"):
        inspector.counts()
    [nobody, last] = free_story(inspector.past("job"))
    assert nobody == "Nobody holds it now."
    assert re.fullmatch(r"Last held by .* \(here\) for .* s, from .* UTC; released\.", last)
    redis_lock("job").acquire()
    redis_lock("job").clear(by="eva", reason="it hung")
    assert free_story(inspector.past("job"))[1].endswith("; cleared by eva (it hung).")


def test_some_are_stale(redis: Redis) -> None:
    """Of several holders, those that live are the ones that clearing harms."""
    granted(redis, "exports", places=3, owner="web3:77:x")
    granted(redis, "exports", places=3, silent=5, owner="web4:78:x", process=NO_PROCESS)
    lock = get(Inspector(), "exports")
    assert "look first at web3 · 77 · x (its/job.py:1 in job)" in told(lock)
    said = consequences(lock, [])[0]
    assert said.startswith("web4 · 78 · x (its/job.py:1 in job) is alive; more than 3 may work")
    assert safer(lock) == "It is safer to clear only those that are stale: 1 of 2."
