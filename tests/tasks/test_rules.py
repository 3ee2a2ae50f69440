"""What `unique` and `limited` owe on any queue. The test is its worker."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from contextvars import Context
from io import StringIO
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import override_settings
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import (
    LeaseLost,
    LockUnavailable,
    Semaphore,
    TooManyResumptions,
    current_lease,
    redis_lock,
)
from django_redislock.base import background
from django_redislock.inspection.tasks import names, tasks
from django_redislock.primitives import work
from django_redislock.primitives.contract import Claim, run
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.work import Work
from django_redislock.tasks import TaskConflict, TaskEvent, guarded, limited, task_event, unique
from django_redislock.tasks.guarded import upkeep
from django_redislock.testing import redis_unavailable, tasks_coalesced
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.caches import caches, entry
from tests.faults.proxy import Fault, Proxy, script
from tests.tasks.by_hand import Handle, Task, task
from tests.waiting import PATIENCE, eventually

NAME = "task:reindex:7"
CLAIM = f"redislock:{{{NAME}}}:claim"
NOTE = f"redislock:{{{NAME}}}:note"

Done = list[Any]
Others = ThreadPoolExecutor


@pytest.fixture(autouse=True)
def _on(redis: Redis) -> None:
    """On the server that the fixture chooses."""


@pytest.fixture(params=[False, True], ids=["id beforehand", "id of the queue"])
def renames(request: pytest.FixtureRequest) -> bool:
    """Whether the queue chooses ids, also when a message is sent again."""
    return bool(request.param)


@pytest.fixture
def done() -> Done:
    return []


@pytest.fixture
def reindex(renames: bool, done: Done) -> Task:
    def reindex(pk: int, note: str = "") -> None:
        done.append((pk, note) if note else pk)

    return task(reindex, renames=renames)


@pytest.fixture
def others() -> Iterator[Others]:
    """Another thread, which has a database connection of its own."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise error

    return fail


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call it as another worker does, which runs no task."""
    return Context().run(call)


# One waits.


def test_calls_are_one_until_the_task_begins(reindex: Task, done: Done) -> None:
    """Five calls are one task, and each caller gets its handle."""
    unique("reindex:{pk}")(reindex)
    assert [reindex.enqueue(7) for _ in range(5)] == [Handle("m1")] * 5
    assert len(reindex.backlog.messages) == 1
    reindex.backlog.work()
    assert done == [7]
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1


def test_another_name_is_another_task(reindex: Task, redis: Redis) -> None:
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    reindex.enqueue(8)
    assert len(reindex.backlog.messages) == 2
    with redis_lock("reindex:7"):  # locks of people are others
        reindex.backlog.work()
    assert redis.exists(CLAIM) == 0


def test_one_more_waits_while_one_runs(reindex: Task, done: Done) -> None:
    """A change that comes while the task runs is not missed, and the two never overlap."""
    unique("reindex:{pk}")(reindex)
    backlog = reindex.backlog

    def first(pk: int, note: str = "") -> None:
        done.append("begins")
        for _ in range(6):
            reindex.enqueue(pk, "again")
        assert len(backlog.messages) == 1
        reindex.function = usual
        elsewhere(backlog.work)  # another worker is given the second message
        assert backlog.starts == ["parked"]
        done.append("ends")

    usual, reindex.function = reindex.function, first
    reindex.enqueue(7)
    backlog.work()
    assert done == ["begins", "ends"]
    backlog.work()
    assert done == ["begins", "ends", (7, "again")]
    assert backlog.messages == []


def test_until_the_end(reindex: Task) -> None:
    """No other call is queued before the task has ended; a failure is an end, too."""
    unique("reindex:{pk}", until="end")(reindex)
    backlog = reindex.backlog

    def fail(pk: int) -> None:
        assert reindex.enqueue(pk) == Handle("m1")
        raise ZeroDivisionError

    reindex.function = fail
    reindex.enqueue(7)
    with pytest.raises(ZeroDivisionError):
        backlog.work()
    assert backlog.messages == []
    assert reindex.enqueue(7) != Handle("m1")


def test_the_function_runs_under_its_lease(reindex: Task) -> None:
    """`current_lease()` is the run's, and a semaphore of its name finds it held."""
    unique("reindex:{pk}", ttl=5)(reindex)
    leases = []

    def look(pk: int) -> None:
        leases.append(current_lease())
        (holder,) = Semaphore(NAME, 1).holders()
        assert "m1" in holder.label

    reindex.function = look
    reindex.enqueue(7)
    reindex.backlog.work()
    (lease,) = leases
    assert (lease.name, lease.ttl, str(lease.state)) == (NAME, 5, "released")
    assert lease.fencing_token


@pytest.mark.parametrize("until", ["start", "end"])
def test_a_retry_keeps_its_name(until: Any, done: Done) -> None:
    """It is no conflict with itself, and nobody else is queued while it waits."""

    def reindex(pk: int) -> None:
        done.append(pk)

    its = unique("reindex:{pk}", until=until)(task(reindex))

    def fail(pk: int) -> None:
        retry = "m1:1"
        assert its.gate is not None
        its.gate.enqueue((pk,), {}, lambda: its.put((pk,), {}, retry), id=retry, again=True)
        its.function = reindex
        raise ZeroDivisionError

    its.function = fail
    its.enqueue(7)
    with pytest.raises(ZeroDivisionError):
        its.backlog.work()
    assert its.enqueue(7) == Handle("m1:1")
    its.backlog.work()
    assert done == [7]


def test_a_retry_of_a_start_that_failed(reindex: Task, done: Done) -> None:
    """Redis was away then. The retry has an id of its own, and begins with the claim of the first
    attempt."""
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    first = reindex.backlog.messages.pop()
    retry = f"{first.id}:1"
    assert reindex.gate is not None
    send = lambda: reindex.put((7,), {}, retry)  # noqa: E731
    reindex.gate.enqueue((7,), {}, send, id=retry, again=True)
    reindex.backlog.work()
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1
    assert done == [7]


def test_a_start_whose_answer_takes_too_long(
    reindex: Task, redis_server: RedisServer, redis: Redis, done: Done, settings: Any
) -> None:
    """The function does not run, and the queue has to try again, as when Redis is away."""
    unique("reindex:{pk}", ttl=0.5)(reindex)
    reindex.enqueue(8)
    reindex.backlog.work()  # from now on the server knows the script
    reindex.enqueue(7)
    with Proxy(redis_server) as proxy, ThreadPoolExecutor(1) as pool:
        settings.CACHES = caches(proxy.url)
        late = proxy.on(script("work_begin"), Fault.HOLD_REPLY)
        start = pool.submit(reindex.backlog.work)
        late.happened()
        eventually(lambda: late.carried_out and not redis.exists(f"redislock:{{{NAME}}}"))
        late.let_go()
        with pytest.raises(LockUnavailable):
            start.result(PATIENCE)
    assert done == [8]


def test_a_start_that_is_asked_for_again(redis: Redis) -> None:
    """Its lease lives for a ttl from then on, as its holder believes."""
    keys = Keys.of("redislock", NAME)
    claim = Claim(keys, "token", 30.0, "me", "here", Work(1))
    ends = []
    for _ in range(2):
        run(claim.primitive.acquire(SyncPort(server_of("default")), claim, 0))
        ends += [end for _, end in redis.zrange(keys.lock, 0, -1, withscores=True)]
        redis.zadd(keys.lock, {"token": ends[0] - 20_000})
    assert ends[1] >= ends[0]


def test_a_retry_keeps_the_name_of_the_call(reindex: Task, done: Done, redis: Redis) -> None:
    """The worker that tries it again has another scope."""
    unique("reindex:{pk}")(reindex)
    with override_settings(REDISLOCK={"SCOPE": "tests.tasks.test_rules.scope"}):
        reindex.enqueue(7)
    claim = "redislock:{acme/task:reindex:7}:claim"
    retry = f"{reindex.backlog.messages[0].id}:1"

    def again() -> None:
        assert reindex.gate is not None
        send = lambda: reindex.put((7,), {}, retry)  # noqa: E731
        reindex.gate.enqueue((7,), {}, send, id=retry, again=True)

    _hold(reindex, done, again)
    reindex.backlog.work()
    assert redis.hget(claim, "id") == retry.encode()
    reindex.backlog.work()
    assert not redis.exists(claim)
    assert done == [7, 7]


# Conflicts.


def test_on_conflict(reindex: Task) -> None:
    for choice, expected in (("existing", Handle("m1")), ("skip", None)):
        unique("reindex:{pk}", on_conflict=choice)(reindex)  # type: ignore[arg-type]
        first = reindex.enqueue(7)
        assert first is not None
        assert reindex.enqueue(7) == (expected and first)
        reindex.backlog.work()
        reindex = _again(reindex)


def _again(one: Task) -> Task:
    return task(one.function, renames=one.backlog.renames)


def test_raise_says_whose_it_is(reindex: Task) -> None:
    unique("reindex:{pk}", on_conflict="raise", until="end")(reindex)
    reindex.enqueue(7)
    with pytest.raises(TaskConflict, match=r"'task:reindex:7': the task m1 waits in the queue"):
        reindex.enqueue(7)

    def conflict(pk: int) -> None:
        with pytest.raises(TaskConflict, match="the task m1 runs") as caught:
            reindex.enqueue(pk)
        error = pickle.loads(pickle.dumps(caught.value))
        assert str(error) == str(caught.value)
        assert (error.id, error.runs) == ("m1", True)
        assert error.holder.owner

    reindex.function = conflict
    reindex.backlog.work()


def test_replace(reindex: Task, done: Done) -> None:
    """The one that waits ends without work, wherever it waits, and the new one has its place."""
    unique("reindex:{pk}", on_conflict="replace")(reindex)
    backlog = reindex.backlog
    assert reindex.enqueue(7, "old") == Handle("m1")
    assert reindex.enqueue(7, "new") == Handle("m2")
    assert len(backlog.messages) == 2
    backlog.work()
    backlog.work()
    assert done == [(7, "new")]
    assert backlog.starts == ["replaced"]


def test_a_parked_one_is_replaced(done: Done) -> None:
    """What was replaced while it was parked is not sent again."""

    def reindex(pk: int, note: str) -> None:
        done.append(note)
        if note == "first":
            its.enqueue(pk, "parked")
            elsewhere(its.backlog.work)
            its.enqueue(pk, "last")

    its = unique("reindex:{pk}", on_conflict="replace")(task(reindex))
    its.enqueue(7, "first")
    its.backlog.work()
    while its.backlog.messages:
        its.backlog.work()
    assert done == ["first", "last"]


# What goes wrong.


@pytest.mark.parametrize("error", [OSError, TimeoutError, KeyboardInterrupt, ValueError])
def test_the_queue_fails(reindex: Task, error: type[BaseException], redis: Redis) -> None:
    """What could not be queued has no name: the next call is queued."""
    unique("reindex:{pk}")(reindex)
    reindex.backlog.broken = error()
    with pytest.raises(error):
        reindex.enqueue(7)
    assert redis.exists(CLAIM) == 0
    reindex.backlog.broken = None
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1


def test_a_kill_before_the_queue_has_it(reindex: Task, redis: Redis) -> None:
    """The claim is short until the queue has the message, and long then."""
    unique("reindex:{pk}", queued_for=900)(reindex)
    lives = []
    put = reindex.put

    def look(*message: Any) -> Any:
        lives.append(redis.pttl(CLAIM))
        return put(*message)

    reindex.put = look  # type: ignore[method-assign]
    reindex.enqueue(7)
    assert 0 < lives[0] <= 30_000
    assert 890_000 < redis.pttl(CLAIM) <= 900_000


def test_an_immediate_backend(reindex: Task, done: Done, redis: Redis) -> None:
    """The task has ended before the queue returns: then nothing is left of its claim."""
    reindex.backlog.immediate = True
    unique("reindex:{pk}")(reindex)
    for _ in range(2):
        reindex.enqueue(7)
    assert done == [7, 7]
    assert redis.exists(CLAIM) == 0


@pytest.mark.parametrize("pk", [7, 8])
def test_an_immediate_backend_inside_its_own_task(reindex: Task, pk: int, redis: Redis) -> None:
    """A task that queues itself, for its own name or another: each begins, one at a time for a
    name, and nothing is left of the claims."""
    reindex.backlog.immediate = True
    log: list[str] = []

    def body(pk: int, depth: int = 0) -> None:
        log.append(f"{pk} begins")
        if depth:
            reindex.enqueue(other, depth - 1)
        log.append(f"{pk} ends")

    other, reindex.function = pk, body
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7, 1)
    inner = [f"{pk} begins", f"{pk} ends"]
    assert log == (["7 begins", "7 ends", *inner] if pk == 7 else ["7 begins", *inner, "7 ends"])
    reindex.enqueue(pk)
    assert log[4:] == inner
    assert redis.keys("*:claim") == []


def test_a_promoted_one_begins_before_it_is_confirmed(
    reindex: Task, done: Done, redis: Redis
) -> None:
    """Whoever sends it knows its new id only then. Nothing is left of the claim that it had under
    its old one, so the next call is queued."""
    unique("reindex:{pk}")(reindex)
    backlog = reindex.backlog

    def inside() -> None:
        reindex.enqueue(7, "parked")
        elsewhere(backlog.work)
        backlog.immediate = True

    _hold(reindex, done, inside)
    reindex.enqueue(7, "first")
    backlog.work()
    assert backlog.starts == ["parked"]
    assert redis.exists(CLAIM) == 0
    reindex.enqueue(7, "next")
    assert done == [(7, "first"), (7, "parked"), (7, "next")]


def test_redis_is_away_at_a_call(reindex: Task, own_server: RedisServer) -> None:
    """Nothing is queued."""
    unique("reindex:{pk}")(reindex)
    own_server.stop()
    with pytest.raises(LockUnavailable):
        reindex.enqueue(7)
    assert reindex.backlog.messages == []


def test_redis_is_away_at_a_start(reindex: Task, own_server: RedisServer) -> None:
    """The error is for the retry of the queue; the function does not run."""
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    own_server.stop()
    reindex.function = pytest.fail
    with pytest.raises(LockUnavailable):
        reindex.backlog.work()


# A call that comes while another one is being queued.


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a call waits for another one."""
    waits = threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    monkeypatch.setattr(guarded, "time", SimpleNamespace(sleep=sleep))
    return waits


@pytest.mark.parametrize("error", [None, OSError("the queue is away")])
def test_it_waits_for_that(
    reindex: Task,
    others: Others,
    waits: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
) -> None:
    """Until it is done, or has failed. Then there is one message, and it has its handle."""
    unique("reindex:{pk}")(reindex)
    monkeypatch.setattr(work, "SENT_WITHIN", PATIENCE)
    put, second = reindex.put, None

    def slow(*args: Any) -> Any:
        nonlocal second
        if second is None:
            second = others.submit(reindex.enqueue, 7)
            assert waits.wait(PATIENCE)
            if error is not None:
                raise error
        return put(*args)

    monkeypatch.setattr(reindex, "put", slow)
    with suppress(OSError):
        reindex.enqueue(7)
    assert second is not None
    handle = second.result(PATIENCE)
    (message,) = reindex.backlog.messages
    assert handle.id == message.id


def test_a_caller_that_was_killed(
    reindex: Task, waits: threading.Event, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    """It has claimed the name, and sent nothing. After a moment the next call takes its place."""
    unique("reindex:{pk}")(reindex)
    monkeypatch.setattr(reindex, "put", raises(SystemExit))
    monkeypatch.setattr(work, "confirm", raises(SystemExit))
    with pytest.raises(SystemExit):
        reindex.enqueue(7)
    monkeypatch.undo()
    monkeypatch.setattr(work, "SENT_WITHIN", 0.05)
    assert 0 < redis.pttl(CLAIM) <= 30_000
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1
    assert redis.pttl(CLAIM) > 30_000


@pytest.mark.parametrize("on_conflict", ["existing", "replace"])
def test_two_calls_after_a_kill(
    reindex: Task,
    others: Others,
    waits: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    done: Done,
    on_conflict: Any,
) -> None:
    """One takes the place of the call that was killed, and the other one waits for it, although
    its own patience with the first one is over."""
    unique("reindex:{pk}", on_conflict=on_conflict)(reindex)
    with monkeypatch.context() as patch:
        patch.setattr(reindex, "put", raises(SystemExit))
        patch.setattr(work, "confirm", raises(SystemExit))
        with pytest.raises(SystemExit):
            reindex.enqueue(7, "killed")
    put, slow = reindex.put, iter([True])

    def wait_for_the_other(*args: Any) -> Any:
        if next(slow, False):
            waits.clear()
            assert waits.wait(PATIENCE)
        waits.set()
        return put(*args)

    monkeypatch.setattr(reindex, "put", wait_for_the_other)
    other = others.submit(reindex.enqueue, 7, "other")
    handles = {reindex.enqueue(7, "this"), other.result(PATIENCE)}
    backlog = reindex.backlog
    assert {one.id for one in backlog.messages} >= {one.id for one in handles}
    while backlog.messages:
        backlog.work()
    assert len(done) == 1
    assert backlog.starts == (["replaced"] if on_conflict == "replace" else [])


def test_a_slow_caller(
    reindex: Task, monkeypatch: pytest.MonkeyPatch, others: Others, done: Done
) -> None:
    """Its message comes after all, and runs: its caller has its handle."""
    unique("reindex:{pk}")(reindex)
    monkeypatch.setattr(work, "SENT_WITHIN", 0.05)
    put = reindex.put

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(reindex, "put", put)
        others.submit(reindex.enqueue, 7, "second").result(PATIENCE)
        return put(*args)

    monkeypatch.setattr(reindex, "put", slow)
    reindex.enqueue(7, "first")
    for _ in range(2):
        reindex.backlog.work()
    assert done == [(7, "second"), (7, "first")]


def test_a_slow_caller_whose_task_is_parked(
    reindex: Task, monkeypatch: pytest.MonkeyPatch, done: Done
) -> None:
    """It was sent, and nobody knows that yet. It is not lost when another call takes its place."""
    unique("reindex:{pk}")(reindex)
    monkeypatch.setattr(work, "SENT_WITHIN", 0.05)
    put, backlog = reindex.put, reindex.backlog

    def slow(*args: Any) -> Any:
        reindex.put = put  # type: ignore[method-assign]
        sent = put(*args)
        elsewhere(backlog.work)
        assert backlog.starts == ["parked"]
        reindex.enqueue(7, "second")
        return sent

    def body(pk: int, note: str) -> None:
        done.append(note)
        if note == "running":
            reindex.put = slow  # type: ignore[method-assign]
            reindex.enqueue(7, "first")

    reindex.function = body
    reindex.enqueue(7, "running")
    while backlog.messages:
        backlog.work()
    assert sorted(done) == ["first", "running", "second"]


# Transactions.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("on_conflict", ["existing", "skip", "raise", "replace"])
def test_a_commit_queues_it(reindex: Task, on_conflict: Any, done: Done, redis: Redis) -> None:
    """Once, and nothing is claimed before."""
    unique("reindex:{pk}", on_conflict=on_conflict)(reindex)
    with transaction.atomic():
        handles = [reindex.enqueue(7) for _ in range(3)]
        assert reindex.backlog.messages == []
        assert redis.exists(CLAIM) == 0
    assert handles[0] == (None if reindex.backlog.renames else Handle("m1"))
    assert (len(set(handles)) == 1) or on_conflict == "replace"
    while reindex.backlog.messages:
        reindex.backlog.work()
    assert done == [7]


@pytest.mark.django_db(transaction=True)
def test_a_commit_of_several_calls_is_one_task(reindex: Task, done: Done) -> None:
    """It begins at once, and nevertheless it has seen what all of them want."""
    unique("reindex:{pk}")(reindex)
    reindex.backlog.immediate = True
    for _ in range(2):
        with tasks_coalesced("reindex:7"), transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                reindex.enqueue(7, "rolled back")
                raise ZeroDivisionError
            for note in ("first", "second"):
                reindex.enqueue(7, note)
    assert done == [(7, "first")] * 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("inner", [False, True], ids=["transaction", "savepoint"])
def test_a_rollback_queues_nothing(reindex: Task, inner: bool, redis: Redis) -> None:
    unique("reindex:{pk}", on_conflict="raise")(reindex)
    with transaction.atomic() if inner else nullcontext():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            reindex.enqueue(7)
            raise ZeroDivisionError
    assert reindex.backlog.messages == []
    reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1


@pytest.mark.django_db(transaction=True)
def test_a_task_that_begins_before_the_commit_is_not_enough(reindex: Task, done: Done) -> None:
    """It does not see what the transaction writes, although it had the name at the call."""
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7, "before")
    with transaction.atomic():
        reindex.enqueue(7, "in it")
        reindex.backlog.work()
    assert done == [(7, "before")]
    reindex.backlog.work()
    assert done == [(7, "before"), (7, "in it")]


@pytest.mark.django_db(transaction=True)
def test_a_task_that_waits_at_the_commit_is_enough(reindex: Task) -> None:
    unique("reindex:{pk}")(reindex)
    first = reindex.enqueue(7)
    with transaction.atomic():
        assert reindex.enqueue(7) == first
    assert len(reindex.backlog.messages) == 1


@pytest.mark.django_db(transaction=True)
def test_nobody_counts_on_an_open_transaction(reindex: Task, others: Others, done: Done) -> None:
    """It may be rolled back, and then a call that had counted on it would be lost."""
    unique("reindex:{pk}")(reindex)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        reindex.enqueue(7, "in it")
        others.submit(reindex.enqueue, 7, "beside it").result(PATIENCE)
        raise ZeroDivisionError
    reindex.backlog.work()
    assert done == [(7, "beside it")]


@pytest.mark.django_db(transaction=True)
def test_a_name_that_is_taken_in_a_transaction(reindex: Task) -> None:
    """`raise` says so at the call, and then nothing is queued by the commit."""
    unique("reindex:{pk}", on_conflict="raise")(reindex)
    reindex.enqueue(7)
    with transaction.atomic(), pytest.raises(TaskConflict, match="m1 waits in the queue"):
        reindex.enqueue(7)
    assert len(reindex.backlog.messages) == 1


@pytest.mark.django_db(transaction=True)
def test_redis_is_away_in_a_transaction(reindex: Task, redis: Redis) -> None:
    """The call says so while the transaction can still be rolled back. At the commit it is too
    late: the task is queued, and has no name."""
    unique("reindex:{pk}")(reindex)
    with transaction.atomic(), redis_unavailable(), pytest.raises(LockUnavailable):
        reindex.enqueue(7)
    assert reindex.backlog.messages == []
    with ExitStack() as at_the_commit, transaction.atomic():
        reindex.enqueue(7)
        at_the_commit.enter_context(redis_unavailable())
    assert len(reindex.backlog.messages) == 1
    assert redis.exists(CLAIM) == 0


@pytest.mark.django_db(transaction=True)
def test_the_arguments_of_a_rollback_settle_nothing(reindex: Task, done: Done) -> None:
    unique("reindex:{pk}", settle=0)(reindex)
    reindex.enqueue(7, "first")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        reindex.enqueue(7, "rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        reindex.enqueue(7, "last")
    reindex.backlog.work()
    assert done == [(7, "last")]


# Settling.


def test_the_last_call_settles_it(reindex: Task, done: Done, redis: Redis) -> None:
    """A message that comes too early waits; the task has the arguments of the last call."""
    unique("reindex:{pk}", settle=30, at_most=100)(reindex)
    backlog = reindex.backlog
    reindex.enqueue(7, "first")
    reindex.enqueue(7, note="last")
    backlog.work()
    assert backlog.starts == ["early"]
    ((seconds, message),) = backlog.later
    assert 29 < seconds <= 30
    assert reindex.enqueue(7, note="last") == Handle(message.id)
    redis.hset(CLAIM, "due", 1)  # its time has come
    backlog.work(message)
    assert done == [(7, "last")]
    assert redis.exists(CLAIM) == 0


def test_it_settles_after_a_while_in_any_case(reindex: Task, redis: Redis) -> None:
    unique("reindex:{pk}", settle=30, at_most=40)(reindex)
    reindex.enqueue(7)
    first = int(redis.hget(CLAIM, "first"))
    redis.hset(CLAIM, "first", first - 39_000_000)
    reindex.enqueue(7)
    assert int(redis.hget(CLAIM, "due")) - first < 2_000_000


# Limits.


def _hold(its: Task, done: Done, inside: Callable[[], None]) -> None:
    """Let the function of the next message call `inside` while it runs."""
    usual = its.function

    def first(*args: Any, **kwargs: Any) -> None:
        its.function = usual
        inside()
        usual(*args, **kwargs)

    its.function = first


def test_too_many_are_parked(reindex: Task, done: Done, redis: Redis) -> None:
    """No worker waits: a message without a permit leaves the queue, and comes back in order."""
    limited("reindex", 1)(reindex)
    backlog = reindex.backlog
    for number in range(4):
        reindex.enqueue(number)

    def inside() -> None:
        for _ in range(3):
            elsewhere(backlog.work)
        assert backlog.starts == ["parked"] * 3
        assert backlog.messages == []

    _hold(reindex, done, inside)
    backlog.work()
    assert done == [0]
    while backlog.messages:
        assert len(backlog.messages) == 1  # the first one, and no more than have permits
        backlog.work()
    assert done == [0, 1, 2, 3]
    left = {key.decode().rpartition(":")[2] for key in redis.scan_iter("redislock:{task:*")}
    assert left <= {"history", "holders", "clock"}


def test_no_key_stays_for_good(reindex: Task, done: Done, redis: Redis) -> None:
    """Each key has a TTL, whatever happens: nobody may ever ask for that name again."""
    limited("reindex", 1)(unique("reindex:{pk}", settle=0)(reindex))
    backlog = reindex.backlog

    def look() -> None:
        keys = redis.scan_iter("redislock*{task:*")
        endless = [key for key in keys if redis.pttl(key) == -1]
        assert [key for key in endless if not key.endswith((b":clock", b":guard"))] == []

    for number in range(4):
        reindex.enqueue(number)
        look()

    def inside() -> None:
        while backlog.messages:
            elsewhere(backlog.work)
            look()

    _hold(reindex, done, inside)
    backlog.work()
    look()
    while backlog.messages:
        backlog.work()
        look()
    assert sorted(done) == [0, 1, 2, 3]


def test_nobody_passes_those_that_are_parked(done: Done) -> None:
    """A message that comes while others are parked stands behind them."""
    its = limited("reindex", 1)(task(done.append))
    for number in range(3):
        its.enqueue(number)

    def inside() -> None:
        elsewhere(its.backlog.work)

    _hold(its, done, inside)
    its.backlog.work()
    promoted = its.backlog.messages[-1]
    assert promoted.args == (1,)
    its.backlog.work()  # message 2, which the queue had before
    assert its.backlog.starts == ["parked", "parked"]
    while its.backlog.messages:
        its.backlog.work()
    assert done == [0, 1, 2]


def test_a_limit_that_changes(reindex: Task, done: Done) -> None:
    """Each that begins or ends is measured by the limit that stands in the settings then."""
    limited("reindex")(reindex)
    backlog = reindex.backlog
    with override_settings(REDISLOCK={"LOCKS": {"task:reindex": {"LIMIT": 1}}}):
        for number in range(3):
            reindex.enqueue(number)

    def inside() -> None:
        elsewhere(backlog.work)
        assert backlog.starts == ["parked"]
        with override_settings(REDISLOCK={"LOCKS": {"task:reindex": {"LIMIT": 3}}}):
            elsewhere(backlog.work)  # it stands behind the one that is parked
            for _ in range(2):
                elsewhere(backlog.work)

    _hold(reindex, done, inside)
    with override_settings(REDISLOCK={"LOCKS": {"task:reindex": {"LIMIT": 1}}}):
        backlog.work()
    assert done == [1, 2, 0]


def test_weights(done: Done) -> None:
    """The head of the line waits for its whole weight, and nobody passes it."""
    numbers = count(1)
    heavy = limited("api", 3, weight=2)(task(lambda: done.append("heavy"), numbers=numbers))

    def light() -> None:
        done.append("light")

    its = limited("api", 3)(task(light, numbers=numbers))
    its.enqueue()
    its.enqueue()
    its.enqueue()
    heavy.enqueue()

    def inside() -> None:  # one permit is taken
        def two() -> None:  # two are
            elsewhere(heavy.backlog.work)
            assert heavy.backlog.starts == ["parked"]
            assert heavy.backlog.messages == []
            elsewhere(its.backlog.work)
            assert its.backlog.starts == ["parked"]

        _hold(its, done, two)
        elsewhere(its.backlog.work)

    _hold(its, done, inside)
    its.backlog.work()
    assert done == ["light", "light"]
    assert len(heavy.backlog.messages) == 1
    its.enqueue()
    its.backlog.work(its.backlog.messages.pop())  # those that were promoted have all permits
    assert len(its.backlog.starts) == 2
    heavy.backlog.work()
    its.backlog.work()
    its.backlog.work()
    assert done[2:] == ["heavy", "light", "light"]


def test_more_than_all_permits(done: Done) -> None:
    """A task that wants more of them than there are runs alone, and is not parked for ever."""
    its = limited("api", weight=2)(task(done.append))
    with override_settings(REDISLOCK={"LOCKS": {"task:api": {"LIMIT": 1}}}):
        its.enqueue(1)
        its.enqueue(2)
        _hold(its, done, lambda: elsewhere(its.backlog.work))
        its.backlog.work()
        assert its.backlog.starts == ["parked"]
        its.backlog.work()
    assert done == [1, 2]


def test_a_duplicate_does_not_run_beside(reindex: Task, done: Done, redis: Redis) -> None:
    """A message that the queue delivers again, while it runs, is dropped at the end of the run."""
    limited("reindex", 5)(reindex)
    reindex.enqueue(7)
    (message,) = reindex.backlog.messages
    _hold(reindex, done, lambda: elsewhere(lambda: reindex.backlog.work(message)))
    reindex.backlog.work()
    assert done == [7]
    assert reindex.backlog.starts == ["duplicate"]
    assert reindex.backlog.messages == []
    assert redis.keys("redislock:{task:reindex}:messages") == []


@pytest.mark.parametrize("large", [False, True])
def test_a_duplicate_of_a_killed_worker(
    reindex: Task, done: Done, redis: Redis, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue delivers a message again while the lease of the killed worker still lives. It runs
    when that has ended, unless it was too large to be kept."""
    unique("reindex:{pk}", ttl=1)(reindex)
    if large:
        monkeypatch.setattr(guarded, "MOST", 10)
    reindex.enqueue(7)
    (message,) = reindex.backlog.messages
    # A sweep that is planned already, and may come at a wrong time.
    where = server_of("default").address, f"redislock:{{{NAME}}}"
    upkeep().add(where, lambda: False, 2 * PATIENCE)

    def inside() -> None:
        elsewhere(lambda: reindex.backlog.work(message))
        assert reindex.backlog.starts == ["duplicate"]
        assert reindex.backlog.messages == []
        _kill(redis, "task:reindex:7")
        if not large:  # it is sent without a call, and that is confirmed
            eventually(lambda: reindex.backlog.messages)
            (again,) = reindex.backlog.messages
            eventually(lambda: redis.zscore(f"redislock:{{{NAME}}}:sent", again.id))

    _hold(reindex, done, inside)
    with pytest.raises(Exception, match="lost"):
        reindex.backlog.work()
    while reindex.backlog.messages:
        reindex.backlog.work()
    assert done == ([7] if large else [7, 7])


def test_unique_and_limited(done: Done, renames: bool, redis: Redis) -> None:
    """What is parked for its permit still waits: its name is taken until it begins."""
    tenants = [1, 2]

    def digest(user: int) -> None:
        done.append(user)

    its = unique("digest:{user}")(limited("api", 1)(task(digest, renames=renames)))
    for user in tenants:
        its.enqueue(user)

    def inside() -> None:
        elsewhere(its.backlog.work)
        assert its.backlog.starts == ["parked"]
        assert its.enqueue(2) == Handle("m2")

    _hold(its, done, inside)
    its.backlog.work()
    its.backlog.work()
    assert done == [1, 2]
    assert its.backlog.messages == []
    assert redis.exists("redislock:{task:digest:2}:claim") == 0


# Kills.


def _kill(redis: Redis, name: str) -> None:
    """End the leases of those that run, as time does after a kill."""
    redis.delete(f"redislock:{{{name}}}")


class Killed(BaseException):
    """Stands for the end of the process: nothing is given back."""


def test_a_permit_of_a_killed_worker(reindex: Task, done: Done, redis: Redis) -> None:
    """What was parked goes on when another call of that name begins or ends."""
    limited("reindex", 1, ttl=1)(reindex)
    for number in range(3):
        reindex.enqueue(number)

    def inside() -> None:
        elsewhere(reindex.backlog.work)
        _kill(redis, "task:reindex")
        elsewhere(reindex.backlog.work)  # the permit is free, and the parked one is first
        assert [one.args for one in reindex.backlog.messages] == [(1,)]

    _hold(reindex, done, inside)
    with pytest.raises(Exception, match="lost"):
        reindex.backlog.work()
    while reindex.backlog.messages:
        reindex.backlog.work()
    assert sorted(done) == [0, 1, 2]


def test_one_name_at_two_servers(own_server: RedisServer, done: Done) -> None:
    """What is parked at each of them is looked after."""
    urls = {"default": own_server.url, "other": own_server.url.replace("db=0", "db=1")}
    with override_settings(CACHES={alias: entry(url) for alias, url in urls.items()}):

        def first(pk: int) -> None:
            done.append(pk)

        def second(pk: int) -> None:
            done.append(pk)

        both = [
            limited("reindex", 1, ttl=1, using=alias)(task(function))
            for alias, function in zip(urls, (first, second), strict=True)
        ]
        for its in both:
            its.enqueue(1)
            its.enqueue(2)

        def inside() -> None:
            for its in both:
                elsewhere(its.backlog.work)
                assert its.backlog.starts == ["parked"]
            for url in urls.values():
                with Redis.from_url(url) as client:
                    _kill(client, "task:reindex")
            eventually(lambda: all(its.backlog.messages for its in both))

        _hold(both[0], done, inside)
        _hold(both[1], done, lambda: elsewhere(both[0].backlog.work))
        with pytest.raises(LeaseLost):
            both[1].backlog.work()
        for its in both:
            while its.backlog.messages:
                its.backlog.work()
        addresses = {server_of(alias).address for alias in urls}
        eventually(lambda: not addresses & {where for where, _ in upkeep()._chores})
    assert done == [1, 2, 2]


@pytest.mark.parametrize("recover", [True, False])
def test_recover(recover: bool, done: Done, redis: Redis) -> None:
    """With `recover` a killed worker's task is sent again, and not after it has ended."""
    its = limited("reindex", 1, recover=recover, ttl=1)(task(done.append))
    its.enqueue(1)
    its.enqueue(2)

    def inside() -> None:
        _kill(redis, "task:reindex")
        elsewhere(its.backlog.work)
        again = [one.args for one in its.backlog.messages]
        assert again == ([(1,)] if recover else [])

    _hold(its, done, inside)
    with pytest.raises(Exception, match="lost"):
        its.backlog.work()  # it was not killed after all, and has ended
    while its.backlog.messages:
        its.backlog.work()
    assert sorted(done) == ([1, 1, 2] if recover else [1, 2])


def test_what_has_ended_is_not_recovered(done: Done, redis: Redis) -> None:
    """Its lease ended while it ran, and it was parked again: its end takes it out."""
    its = limited("reindex", recover=True, ttl=1)(task(done.append))
    limits = [{"LOCKS": {"task:reindex": {"LIMIT": limit}}} for limit in (1, 2)]
    with override_settings(REDISLOCK=limits[1]):
        for number in range(3):
            its.enqueue(number)

        def lost() -> None:
            token = next(
                token
                for token, run_of in redis.hgetall("redislock:{task:reindex}:runs").items()
                if run_of == b"1|m2"
            )
            redis.zrem("redislock:{task:reindex}", token)
            with override_settings(REDISLOCK=limits[0]):
                elsewhere(its.backlog.work)
            assert redis.lrange("redislock:{task:reindex}:parked", 0, -1) == [b"m2", b"m3"]

        def inside() -> None:
            _hold(its, done, lost)
            with pytest.raises(Exception, match="lost"):
                elsewhere(its.backlog.work)

        _hold(its, done, inside)
        its.backlog.work()
        while its.backlog.messages:
            its.backlog.work()
    assert done == [1, 0, 2]


def test_it_ends_while_it_is_sent_again(
    done: Done, renames: bool, redis: Redis, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has ended, and its message is on the way again: that begins at once."""
    over = threading.Event()

    def body(pk: int) -> None:
        done.append(pk)
        over.wait(PATIENCE)

    its = limited("reindex", 1, recover=True, ttl=1)(task(body, renames=renames))
    its.enqueue(1)
    running = others.submit(its.backlog.work)
    eventually(lambda: done)
    _kill(redis, "task:reindex")
    put = its.put

    def late(*args: Any) -> Any:
        over.set()
        with pytest.raises(LeaseLost):
            running.result(PATIENCE)
        return put(*args)

    monkeypatch.setattr(its, "put", late)
    [rule] = its.gate.rules
    guarded.sweep(rule.of("task:reindex"))
    its.backlog.work()
    assert done == [1, 1]
    assert its.backlog.starts == []
    assert redis.keys("redislock:{task:reindex}:messages") == []


def test_the_promoter_is_killed(reindex: Task, done: Done, redis: Redis, renames: bool) -> None:
    """What was promoted and never sent is promoted again, and not before it could be sent."""
    limited("reindex", 1)(reindex)
    for number in range(3):
        reindex.enqueue(number)

    _hold(reindex, done, lambda: elsewhere(reindex.backlog.work))
    reindex.backlog.broken = Killed()
    with pytest.raises(Killed):
        reindex.backlog.work()
    reindex.backlog.broken = None
    reindex.backlog.work()  # the third one finds the permit reserved
    assert reindex.backlog.messages == []
    sent = "redislock:{task:reindex}:sent"
    (promoted,) = redis.zrange(sent, 0, -1)
    redis.zadd(sent, {promoted: 1})  # ten seconds later
    reindex.enqueue(3)
    reindex.backlog.work()
    while reindex.backlog.messages:
        reindex.backlog.work()
    # A message whose id nobody knows yet may have begun already, as far as anybody can tell.
    assert done == ([0, 2, 1, 3] if renames else [0, 1, 2, 3])


def test_a_backlog_is_no_loss(reindex: Task, done: Done, redis: Redis) -> None:
    """A promoted message that waits in the queue is not sent twice."""
    limited("reindex", 1)(reindex)
    for number in range(2):
        reindex.enqueue(number)
    _hold(reindex, done, lambda: elsewhere(reindex.backlog.work))
    reindex.backlog.work()
    ((_, until),) = redis.zrange("redislock:{task:reindex}:sent", 0, -1, withscores=True)
    seconds, _ = redis.time()
    assert until / 1e6 - seconds > 3000
    assert len(reindex.backlog.messages) == 1


# Names.


def test_a_name_is_that_of_the_call(reindex: Task, done: Done, redis: Redis) -> None:
    """The worker may have another scope, or another template: the name was noted."""
    unique("reindex:{pk}")(reindex)
    with override_settings(REDISLOCK={"SCOPE": "tests.tasks.test_rules.scope"}):
        reindex.enqueue(7)
    claim = "redislock:{acme/task:reindex:7}:claim"
    assert redis.exists(claim)
    reindex.backlog.work()
    assert done == [7]
    assert not redis.exists(claim)


def scope() -> str:
    return "acme"


def test_a_name_stays_while_it_is_parked(reindex: Task, done: Done, redis: Redis) -> None:
    """Also if the queue gives the message another id."""
    limited("reindex", 1)(reindex)
    with override_settings(REDISLOCK={"SCOPE": "tests.tasks.test_rules.scope"}):
        reindex.enqueue(1)
        reindex.enqueue(2)

    def inside() -> None:
        elsewhere(reindex.backlog.work)
        redis.delete(*redis.scan_iter("redislock:{message:*"))

    _hold(reindex, done, inside)
    reindex.backlog.work()
    _hold(reindex, done, lambda: seen.extend(redis.scan_iter("redislock:{acme/task:reindex}")))
    seen: list[bytes] = []
    reindex.backlog.work()
    assert done == [1, 2]
    assert len(seen) == 1


def test_two_deploys(reindex: Task, done: Done, redis: Redis) -> None:
    """The worker has another template than the process that has called."""
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    (rule,) = reindex.gate.rules  # type: ignore[union-attr]
    rule._template = "index:{pk}"
    rule.bind(reindex.function)
    reindex.backlog.work()
    assert (done, redis.exists(CLAIM)) == ([7], 0)


def test_a_message_without_a_note(reindex: Task, done: Done, redis: Redis) -> None:
    """The name is made from the arguments."""
    unique("reindex:{pk}")(reindex)
    reindex.enqueue(7)
    redis.delete(*redis.scan_iter("redislock:{message:*"))
    reindex.backlog.work()
    assert (done, redis.exists(CLAIM)) == ([7], 0)


# Mistakes.


def test_mistakes() -> None:
    one = task(lambda pk: None)
    with pytest.raises(TypeError, match=r"stands above the decorator that makes the task"):
        unique("x")(lambda: None)
    with pytest.raises(ValueError, match="until must be"):
        unique("x", until="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_conflict must be"):
        unique("x", on_conflict="wait")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at_most is for a task that settles"):
        unique("x", at_most=3)
    with pytest.raises(ValueError, match=r"queued_for must be .* 31536000 seconds, not 0$"):
        unique("x", queued_for=0)
    with pytest.raises(TypeError, match="transaction must be an alias of DATABASES"):
        unique("x", transaction=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wait"):
        unique("x", wait=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="needs the argument 'team'"):
        unique("x:{team}")(one)
    with pytest.raises(ValueError, match="weight is 3, and there are 2 permits"):
        limited("x", 2, weight=3)
    with pytest.raises(TypeError, match="limit"):
        limited("x", "3")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [unique, limited])
@pytest.mark.parametrize("pk", ["a\nb", "a{b", "a" * 512, object()])
def test_a_name_that_no_lock_may_have(rule: Any, pk: object, reindex: Task) -> None:
    """Nobody could write it behind `redislock tasks`, and an address excludes nobody."""
    with pytest.raises(ValueError, match=r"^name "):
        rule("x:{pk}")(reindex).enqueue(pk)
    assert reindex.backlog.messages == []


def test_two_names() -> None:
    with pytest.raises(TypeError, match="has two names by @unique"):
        unique("y:{pk}")(unique("x:{pk}")(task(lambda pk: None)))


def test_a_lock_belongs_below() -> None:
    """`redis_lock` locks functions, and says so for a task."""
    with pytest.raises(TypeError, match="below the decorator"):
        redis_lock("x")(unique("x:{pk}")(task(lambda pk: None)))


def test_a_large_message(done: Done) -> None:
    """It runs, and can't be parked."""
    its = limited("x", 1)(task(done.append))
    its.enqueue("x" * 70_000)
    its.enqueue("y" * 70_000)

    def inside() -> None:
        with pytest.raises(ValueError, match="pass the key of a row"):
            elsewhere(its.backlog.work)

    _hold(its, done, inside)
    its.backlog.work()
    assert [text[0] for text in done] == ["x"]


def test_a_large_message_that_is_kept(done: Done) -> None:
    its = limited("x", 1, recover=True)(task(done.append))
    its.enqueue("x" * 70_000)
    with pytest.raises(ValueError, match="pass the key of a row"):
        its.backlog.work()


def test_a_limit_that_nobody_says() -> None:
    its = limited("x")(task(lambda: None))
    with pytest.raises(ValueError, match="'task:x' has no limit"):
        its.enqueue()


# Events.


def test_events(reindex: Task, done: Done) -> None:
    seen: list[TaskEvent] = []

    def note(event: TaskEvent, **_: object) -> None:
        seen.append(event)

    task_event.connect(note)
    try:
        unique("reindex:{pk}")(reindex)
        reindex.enqueue(7)
        reindex.enqueue(7)
        background.settle()
    finally:
        task_event.disconnect(note)
    assert [(one.what, one.name) for one in seen] == [("claimed", NAME), ("coalesced", NAME)]


def test_a_receiver_that_cancels_itself(
    reindex: Task, done: Done, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which event was not told, and of what."""

    # Django 6.1 takes no notice of it if a coroutine does.
    def cancelled(event: TaskEvent, **_: object) -> None:
        raise asyncio.CancelledError

    task_event.connect(cancelled)
    try:
        unique("reindex:{pk}")(reindex)
        reindex.enqueue(7)
        background.settle()
    finally:
        task_event.disconnect(cancelled)
    assert f"The receivers of 'claimed' could not be called for {NAME!r}" in caplog.text


def test_what_people_see(reindex: Task, done: Done, redis: Redis) -> None:
    """What waits, what is parked and what runs. A cluster is scanned for names."""
    limited("reindex:{pk}", 1)(unique("reindex:{pk}")(reindex))
    reindex.enqueue(7)
    found = tasks(NAME, "default")
    assert [str(one.stage) for one in found.items] == ["queued"]
    with redis_lock(NAME.upper()), redis_lock("other"):  # these have keys, too
        (listed,) = names("default")
    assert (listed.name, listed.counts, listed.claim) == (NAME, found.counts, found.claim)

    def inside() -> None:
        found = tasks(NAME, "default")
        assert found.claim is None
        assert [(str(one.stage), one.weight) for one in found.items] == [("running", 1)]
        assert found.limit == 1

    _hold(reindex, done, inside)
    reindex.backlog.work()
    assert names("default") == []


# Notes.


class TestNotes:
    """A run of a task that is `unique` goes on where the one before it was."""

    @pytest.fixture
    def seen(self) -> list[tuple[Any, int]]:
        """What each run has inherited, and how many have in a row."""
        return []

    @pytest.fixture
    def ends(self, reindex: Task, seen: list[tuple[Any, int]]) -> list[Callable[[Any], object]]:
        """How the next runs end, after each has noted where it is."""
        ends: list[Callable[[Any], object]] = []

        def work(pk: int) -> None:
            lease: Any = current_lease()
            seen.append((lease.inherited, lease.resumptions))
            lease.checkpoint(cursor=len(seen))
            ends.pop(0)(lease)

        reindex.function = work
        return ends

    @staticmethod
    def fail(_: object) -> None:
        raise ZeroDivisionError

    def test_after_a_failure(self, reindex: Task, ends: Any, seen: Any, redis: Redis) -> None:
        """The note is inherited until a run comes to its end, also by a run of another call."""
        unique("reindex:{pk}")(reindex)
        ends += [self.fail, self.fail, repr, repr]
        for _ in range(4):
            reindex.enqueue(7)
            with suppress(ZeroDivisionError):
                reindex.backlog.work()
        assert seen == [(None, 0), ({"cursor": 1}, 1), ({"cursor": 2}, 2), (None, 0)]
        assert not redis.exists(NOTE)

    def test_after_a_kill(self, reindex: Task, ends: Any, seen: Any, redis: Redis) -> None:
        """Its permit has ended by itself."""
        unique("reindex:{pk}")(reindex)

        def killed(lease: Any) -> None:
            redis.zadd(f"redislock:{{{NAME}}}", {lease.token: 1})

        ends += [killed, repr]
        for _ in range(2):
            reindex.enqueue(7)
            with suppress(LeaseLost):
                reindex.backlog.work()
        assert seen == [(None, 0), ({"cursor": 1}, 1)]
        assert not redis.exists(NOTE)

    def test_whoever_lost_its_permit_writes_none(self, reindex: Task, redis: Redis) -> None:
        unique("reindex:{pk}")(reindex)

        def work(pk: int) -> None:
            lease: Any = current_lease()
            redis.zadd(f"redislock:{{{NAME}}}", {lease.token: 1})
            with pytest.raises(LeaseLost):
                lease.checkpoint(cursor=1)

        reindex.function = work
        reindex.enqueue(7)
        with pytest.raises(LeaseLost):
            reindex.backlog.work()
        assert not redis.exists(NOTE)

    def test_too_many_resumptions(self, reindex: Task, ends: Any, seen: Any) -> None:
        """A row that kills each run does not do so for ever."""
        unique("reindex:{pk}")(reindex)
        ends += [self.fail] * 3
        with override_settings(REDISLOCK={"LOCKS": {"task:*": {"MAX_RESUMPTIONS": 1}}}):
            for raised in (ZeroDivisionError, ZeroDivisionError, TooManyResumptions):
                reindex.enqueue(7)
                with pytest.raises(raised):
                    reindex.backlog.work()
            call_command("redislock", "forget-note", "--yes", NAME, stdout=StringIO())
            reindex.enqueue(7)
            with pytest.raises(ZeroDivisionError):
                reindex.backlog.work()
        assert seen == [(None, 0), ({"cursor": 1}, 1), (None, 0)]

    def test_several_run_at_a_time(self, reindex: Task, ends: Any) -> None:
        """It would not be clear whose note it is."""
        limited("reindex:{pk}", 2)(reindex)
        reindex.enqueue(7)
        with pytest.raises(TypeError, match="one runs at a time"):
            reindex.backlog.work()
