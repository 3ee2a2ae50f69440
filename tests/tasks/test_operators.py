"""What operators see of tasks, and what they can do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    LockError,
    LockUnavailable,
    ReadWriteLock,
    Semaphore,
    current_lease,
    redis_lock,
)
from django_redislock.base import background
from django_redislock.inspection.tasks import names as listed
from django_redislock.inspection.tasks import tasks
from django_redislock.lease.watchdog import watchdog
from django_redislock.management.subcommands.tasks import keep_swept
from django_redislock.signals import lock_cleared
from django_redislock.tasks import limited, task_event, unique
from tests.operations.calling import call, write_down
from tests.tasks.by_hand import Task, task


@pytest.fixture
def sync() -> Task:
    """A task of which two may run at a time."""
    made: Task = limited("sync:{pk}", 2)(task(lambda pk: pk))
    return made


def while_running(sync: Task, do: Callable[[], object]) -> None:
    """Call it in a task that runs."""
    sync.enqueue(7)
    sync.function, before = lambda pk: do(), sync.function
    try:
        sync.backlog.work()
    finally:
        sync.function = before


class TestTheKind:
    """A running task is a lock of the kind `task`."""

    def test_list_and_show(self, sync: Task) -> None:
        def look() -> None:
            write_down()
            (lock,) = call("list", "--json").json["items"]
            assert (lock["name"], lock["kind"], lock["limit"]) == ("task:sync:7", "task", 2)
            assert re.search(r"task:sync:7 +task +held +1 of 2: ", call("list").out)
            assert "Tasks:" not in call("list").out  # it is a lock
            out = call("show", "task:sync:7").out
            assert "Kind:            task" in out
            assert re.search(r"^running +m1 +\S+ · \d+ +\d\.\d s +\d\d\.\d s", out, re.M)

        while_running(sync, look)

    def test_what_waits(self, sync: Task) -> None:
        """`list` counts what is no lock, and `show` says who is next, and since when."""
        unique("reindex:{pk}")(task(lambda pk: None)).enqueue(1)
        assert re.search(
            r"\nTasks: 1 queued; the oldest is m1 of 'task:reindex:1', queued for \d\.\d s\. "
            r"See manage\.py redislock tasks --using=default\n$",
            call("list").out,
        )
        assert "Tasks:" not in call("list", "--pattern", "task:*").out
        park(sync, 2)
        assert "Tasks: 2 parked, 1 queued; the oldest is m1 of" in call("list").out
        done = call("show", "task:sync:7")
        assert re.search(r"^Next: the task m3, parked for \d\.\d s, and 1 more\.$", done.out, re.M)
        assert re.search(r"^parked +m4 +- +\d\.\d s", done.out, re.M)
        its = call("show", "task:sync:7", "--json").json["tasks"]
        assert [one["id"] for one in its["items"][2:]] == ["m3", "m4"]
        assert all(0 <= one["age"] < 5 for one in its["items"])
        done = call("show", "task:reindex:1")
        assert done.code == 3
        assert re.search(r"^queued +m1 ", done.out, re.M)

    def test_a_message_without_a_time(self, sync: Task, redis: Redis) -> None:
        """A message that an older process has parked goes on, too; its age is not known."""
        park(sync, 2)
        key = "redislock:{task:sync:7}:messages"
        assert redis.hdel(key, "\tm3")
        assert "Next: the task m3, parked for -, and 1 more." in call("tasks", "sync:7").out
        lose_leases(redis)
        assert call("sweep").code == 0
        assert [one.id for one in sync.backlog.messages] == ["m3"]
        while sync.backlog.messages:
            sync.backlog.work()
        assert names() == []

    @pytest.mark.parametrize(
        "other",
        [
            redis_lock("task:sync:7"),
            Semaphore("task:sync:7", 2),
            ReadWriteLock("task:sync:7").read(),
        ],
        ids=["mutex", "semaphore", "read"],
    )
    def test_another_kind(self, sync: Task, other: redis_lock) -> None:
        """A name is for tasks or for another kind of lock, and the error says who holds it."""

        def ask() -> None:
            with pytest.raises(
                LockError, match="held as tasks of @unique or @limited, by "
            ) as caught:
                other.acquire(wait=0)
            assert type(caught.value) is LockError

        while_running(sync, ask)

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (redis_lock("task:sync:7"), "a mutex, by "),
            (Semaphore("task:sync:7", 2), "a semaphore, by "),
            (ReadWriteLock("task:sync:7").read(), "a read-write lock, for reading, by "),
        ],
        ids=["mutex", "semaphore", "read"],
    )
    def test_a_task_under_another_kind(self, sync: Task, other: redis_lock, words: str) -> None:
        sync.enqueue(7)
        with other, pytest.raises(LockError, match=f"'task:sync:7' is held as {words}"):
            sync.backlog.work()


def park(sync: Task, number: int) -> None:
    """Let workers begin tasks that are killed at once, until so many are parked."""
    for _ in range(2):
        die(sync)
    for _ in range(number):
        sync.enqueue(7)
        Context().run(sync.backlog.work)
    assert sync.backlog.starts[-number:] == ["parked"] * number


def die(sync: Task) -> None:
    """Begin a task, and leave its permit behind as a killed worker does."""

    def killed() -> None:
        lease = current_lease()
        assert lease is not None
        lease._lifetime.end()
        watchdog(lease._server).forget(lease._claim)

    while_running(sync, killed)


def lose_leases(redis: Redis) -> None:
    """As if their ttl were over."""
    lock = "redislock:{task:sync:7}"
    redis.zadd(lock, dict.fromkeys(redis.zrange(lock, 0, -1), 1))


def names() -> list[str]:
    return [one["name"] for one in call("tasks", "--json").json["items"]]


class TestTasks:
    def test_none(self) -> None:
        assert call("tasks").out == "0 names.\n"
        done = call("tasks", "sync:7")
        assert done.code == 3
        assert "'default': 0 running, 0 promoted, 0 parked, 0 queued.\n" in done.out

    def test_the_list(self, sync: Task) -> None:
        """A name is listed as long as anything of it waits or runs."""
        park(sync, 3)
        reindex = unique("reindex:{pk}")(task(lambda pk: None))
        reindex.enqueue(1)
        out = call("tasks").out
        assert re.search(r"^NAME +RUNNING +PROMOTED +PARKED +QUEUED +OLDEST$", out, re.M)
        assert re.search(r"^task:reindex:1 +0 +0 +0 +1 +\d\.\d s$", out, re.M)
        assert re.search(r"^task:sync:7 +2 +0 +3 +0 +\d\.\d s$", out, re.M)
        assert out.index("task:sync:7") < out.index("task:reindex:1"), "parked ones come first"
        assert out.endswith("2 names.\n")
        reindex.backlog.work()
        assert names() == ["task:sync:7"]

    def test_many_names(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are read in parts; of too many, those that are noted for longest."""
        monkeypatch.setattr("django_redislock.inspection.tasks.AT_ONCE", 2)
        reindex = unique("reindex:{pk}")(task(lambda pk: None))
        for number in range(5):
            reindex.enqueue(number)
        redis.zadd("redislock:tasks", {"task:reindex:4": 9e12})
        assert names() == [f"task:reindex:{number}" for number in range(5)]
        assert "task:reindex:4" in [one.name for one in listed("default", 2)]
        assert len(listed("default", 2)) == 2

    def test_the_age_of_one_that_is_parked_again(self, sync: Task, redis: Redis) -> None:
        """It is parked since its first time, also while it is promoted."""
        park(sync, 1)
        redis.hincrby("redislock:{task:sync:7}:messages", "\tm3", -100_000_000)
        lose_leases(redis)
        call("sweep")
        for stage in ("promoted", "parked"):
            (one,) = call("tasks", "sync:7", "--json").json["items"][0]["items"]
            assert (one["stage"], one["id"]) == (stage, "m3")
            assert 100 < one["age"] < 110
            key = "redislock:{task:sync:7}"
            redis.zrem(f"{key}:sent", "m3")
            redis.lpush(f"{key}:parked", "m3")

    def test_the_one_with_the_claim_is_parked_behind_others(self, redis: Redis) -> None:
        """A list of names, which has only the first one, counts it as parked."""
        reindex = unique("reindex:{pk}")(task(lambda pk: None))
        reindex.enqueue(1)
        key = "redislock:{task:reindex:1}"
        redis.rpush(f"{key}:parked", "m0", "m1")
        redis.hset(f"{key}:messages", mapping={"m0": "1|text", "m1": "1|text"})
        for words in ("tasks",), ("tasks", "reindex:1"):
            (found,) = call(*words, "--json").json["items"]
            assert found["counts"] == {"parked": 2}, words
            assert {one["id"]: one["stage"] for one in found["items"]} == {
                "m0": "parked",
                "m1": "parked",
            }

    def test_a_confirmed_claim_is_listed_as_long_as_it_lives(self, redis: Redis) -> None:
        reindex = unique("reindex:{pk}", queued_for=600)(task(lambda pk: None))
        reindex.enqueue(1)
        (until,) = redis.zmscore("redislock:tasks", ["task:reindex:1"])
        assert 590 < until / 1000 - time.time() < 601

    def test_one_name(self, sync: Task) -> None:
        """Its tasks, in the order in which they go on."""
        park(sync, 2)
        done = call("tasks", "sync:7", "--json").json["items"][0]
        assert done["counts"] == {"running": 2, "parked": 2}
        assert (done["limit"], done["claim"]) == (2, None)
        stages = [(one["stage"], one["id"]) for one in done["items"]]
        assert sorted(stages[:2]) == [("running", "m1"), ("running", "m2")]
        assert stages[2:] == [("parked", "m3"), ("parked", "m4")]
        running = done["items"][0]
        assert running["owner"]
        assert 0 <= running["age"] < 5
        assert 20 < running["remaining"] <= 30
        out = call("tasks", "task:sync:7").out
        assert "2 running, 0 promoted, 2 parked, 0 queued; at most 2 run.\n" in out
        assert re.search(r"^STAGE +ID +BY +FOR +REMAINING", out, re.M)
        assert "sweep" not in out

    def test_one_that_waits(self, redis: Redis) -> None:
        """The queued task is shown with its caller and the rest of its claim."""
        reindex = unique("reindex:{pk}", settle=5)(task(lambda pk: None))
        reindex.enqueue(1)
        (one,) = call("tasks", "reindex:1", "--json").json["items"][0]["items"]
        assert (one["stage"], one["id"]) == ("queued", "m1")
        assert one["label"]
        assert one["due"]
        assert 3500 < one["remaining"] <= 3600


class TestDropClaim:
    """For a queue that was purged."""

    @pytest.fixture
    def purged(self) -> Task:
        made = unique("reindex:{pk}")(task(lambda pk: None))
        made.enqueue(1)
        made.backlog.messages.clear()
        return made

    def test_a_dry_run(self, purged: Task) -> None:
        """It says what it would do, and the command that does it."""
        out = call("tasks", "reindex:1", "--drop-claim").out
        assert re.match(r"The task m1, queued for \d\.\d s, has claimed 'task:reindex:1'\.\n", out)
        assert "If its message is still in the queue, it runs, too." in out
        assert (
            "\n  manage.py redislock tasks --drop-claim --yes '--reason=…' task:reindex:1" in out
        )
        purged.enqueue(1)
        assert purged.backlog.messages == []

    def test_it_drops(self, purged: Task) -> None:
        """The next call is queued again, and the signal tells of it."""
        told: list[Any] = []

        def tell(event: Any, **_more: Any) -> None:
            told.append(event)

        lock_cleared.connect(tell)
        try:
            said = ("--drop-claim", "--yes", "--reason", "purged", "--by", "eve")
            done = call("tasks", "reindex:1", *said)
        finally:
            lock_cleared.disconnect(tell)
        assert done == (0, "Dropped the claim of the task m1 on 'task:reindex:1'.\n", "")
        ((name, by, why, label),) = [(one.name, one.by, one.why, one.label) for one in told]
        assert (name, by, why, label) == ("task:reindex:1", "eve", "purged", "queued task m1")
        purged.enqueue(1)
        assert len(purged.backlog.messages) == 1

    def test_nothing_to_drop(self) -> None:
        assert call("tasks", "reindex:1", "--drop-claim").code == 3

    @pytest.mark.usefixtures("purged")
    def test_it_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A claim that came meanwhile is left alone."""
        found = tasks("task:reindex:1", "default")
        gone = replace(found, claim="m0")
        monkeypatch.setattr("django_redislock.management.subcommands.tasks.tasks", lambda *_: gone)
        done = call("tasks", "reindex:1", "--drop-claim", "--yes", "--reason", "purged")
        assert done.code == 75

    @pytest.mark.parametrize("words", [("--drop-claim",), ("x", "--drop-claim", "--yes")])
    def test_wrong_usage(self, words: tuple[str, ...]) -> None:
        assert call("tasks", *words).code == 2


class TestSweep:
    def test_parked_tasks_go_on_after_a_kill(self, sync: Task, redis: Redis) -> None:
        """When the leases of the killed have ended, the first ones are sent again; each of them
        lets others go on."""
        park(sync, 3)
        assert call("sweep").out == "1 name swept: 0 tasks healed, 0 sent again.\n"
        lose_leases(redis)
        stuck = (
            "Next: the task m3, parked for 0.0 s, and 2 more.\n"
            "Nothing runs that would let the others go on. Write: "
            "manage.py redislock sweep --using=default task:sync:7\n"
        )
        assert stuck in re.sub(r"\d\.\d s", "0.0 s", call("tasks", "sync:7").out)
        assert call("sweep", "sync:7").out == "1 name swept: 0 tasks healed, 1 sent again.\n"
        assert [one.id for one in sync.backlog.messages] == ["m3"]
        while sync.backlog.messages:
            sync.backlog.work()
        assert names() == []

    def test_it_keeps_to_the_limit_of_those_that_run(self, sync: Task, redis: Redis) -> None:
        park(sync, 2)
        lock = "redislock:{task:sync:7}"
        (first, _second) = redis.zrange(lock, 0, -1)
        redis.zadd(lock, {first: 1})
        assert "1 sent again" in call("sweep").out
        assert "0 sent again" in call("sweep").out

    def test_a_promoted_one_that_nobody_sent(self, sync: Task, redis: Redis) -> None:
        """Its sender was killed: after ten seconds it is sent again."""
        park(sync, 1)
        lose_leases(redis)
        sync.backlog.broken = OSError("killed")
        assert "1 sent again" in call("sweep").out
        sync.backlog.broken = None
        assert call("tasks", "sync:7", "--json").json["items"][0]["counts"]["promoted"] == 1
        assert "0 tasks healed" in call("sweep").out
        redis.zadd("redislock:{task:sync:7}:sent", {"m3": 1})
        assert call("sweep").out == "1 name swept: 1 tasks healed, 1 sent again.\n"
        assert [one.id for one in sync.backlog.messages] == ["m3"]

    def test_one_that_is_to_be_recovered(self, redis: Redis) -> None:
        """A task with `recover` whose worker was killed is found, though nothing is parked."""
        sync = limited("sync:{pk}", 2, recover=True)(task(lambda pk: None))
        die(sync)
        lose_leases(redis)
        assert call("sweep").out == "1 name swept: 1 tasks healed, 1 sent again.\n"
        sync.backlog.work()
        assert names() == []

    def test_after_a_clear(self, sync: Task) -> None:
        """`clear` takes the permits, and a sweep lets the parked ones go on."""
        park(sync, 1)
        write_down()
        assert call("clear", "task:sync:7", "--yes", "--reason", "stuck").code == 0
        assert "1 sent again" in call("sweep").out
        assert [one.id for one in sync.backlog.messages] == ["m3"]

    def test_the_scheduler_sweeps(
        self,
        sync: Task,
        redis: Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """`runperiodic` does it by itself. A server that is away stops nothing, and is named
        once."""
        park(sync, 1)
        lose_leases(redis)
        rounds = iter([None, None, None])

        def sleep(_seconds: float) -> None:
            if next(rounds, "over") == "over":
                raise KeyboardInterrupt

        monkeypatch.setattr("django_redislock.management.subcommands.tasks.time.sleep", sleep)
        calls = iter([LockUnavailable("away"), LockUnavailable("still away")])
        original = listed

        def away(using: str) -> list[str]:
            for error in calls:
                raise error
            return original(using)

        monkeypatch.setattr("django_redislock.management.subcommands.tasks.names", away)
        with pytest.raises(KeyboardInterrupt):
            keep_swept()
        assert [one.id for one in sync.backlog.messages] == ["m3"]
        said = [one.message for one in caplog.records if one.levelname == "WARNING"]
        assert said == ["Tasks on 'default' were not swept: away"]


def test_the_counter(sync: Task) -> None:
    """Each event is counted under the pattern of its name."""
    metrics = pytest.importorskip("django_redislock.contrib.prometheus.metrics")
    metrics.TASKS.clear()
    task_event.connect(metrics.count_task)
    try:
        park(sync, 1)
        background.settle()
    finally:
        task_event.disconnect(metrics.count_task)
    (found,) = metrics.TASKS.collect()
    values = {
        tuple(one.labels.values()): one.value
        for one in found.samples
        if one.name.endswith("_total")
    }
    assert values["task:sync:*", "default", "parked"] == 1
