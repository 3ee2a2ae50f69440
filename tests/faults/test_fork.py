"""Forked processes: a child has no part in its parent's leases, and works like any other."""

from __future__ import annotations

import pytest
from redis import Redis

from django_redislock import redis_lock
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import queued, remains
from tests.processes import Start
from tests.waiting import eventually


def renewed(redis: Redis, name: str = "job") -> None:
    """Wait until the lease has been renewed once more."""
    before = redis.zscore("redislock:index", name)
    assert before is not None
    eventually(lambda: (redis.zscore("redislock:index", name) or 0) > before)


def test_fork(start: Start, redis: Redis) -> None:
    """The child neither renews nor releases its parent's lease, can lock for itself, and is
    woken through an inbox of its own."""
    before = set(redis.pubsub_channels("redislock:inbox:*"))
    parent = start("tests.faults.fork_programs:both")
    assert parent.lines(4) == ["child released", "child None", "child held", "child waits"]
    eventually(lambda: queued(redis, 1))
    eventually(lambda: len(set(redis.pubsub_channels("redislock:inbox:*")) - before) == 2)
    renewed(redis)
    parent.go_on()
    assert parent.says() == "parent held"
    assert sorted(parent.lines(2)) == ["child held", "parent released"]
    assert parent.ends() == 0


def test_a_fork_that_python_is_not_told_of(start: Start, redis: Redis) -> None:
    """The child notices it itself: its leases are its own, and are renewed."""
    parent = start("tests.faults.fork_programs:untold")
    assert parent.lines(3) == ["child released", "child None", "child holds"]
    for _ in range(4):
        renewed(redis, "of the child")
    parent.go_on()
    assert parent.lines(3) == ["child released", "parent held", "parent released"]
    assert parent.ends() == 0
    assert not remains(redis)


def test_a_fork_while_a_thread_holds_a_lock_of_the_package(start: Start) -> None:
    """The child does not wait for a thread that stayed with its parent."""
    parent = start("tests.faults.fork_programs:while_locked")
    assert parent.says() == "child held"
    assert parent.ends() == 0


def test_beside_threads_that_use_locks(start: Start) -> None:
    """No child waits for what a thread of its parent had in its hands."""
    assert start("tests.faults.fork_programs:beside_threads").says() == "hung 0"


def test_both_leave_the_block(start: Start, redis: Redis) -> None:
    """The child leaves the block in which it was forked, and ends: the parent holds on."""
    parent = start("tests.faults.fork_programs:both_leave")
    assert parent.lines(2) == ["child released", "parent held"]
    renewed(redis)
    parent.go_on()
    assert parent.says() == "parent released"
    assert parent.ends() == 0
    assert not remains(redis)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(start: Start, redis: Redis, method: str) -> None:
    """A child of either kind waits for its parent as any other process would."""
    parent = start("tests.faults.fork_programs:multiprocess", method)
    if method == "fork":
        assert parent.lines(2) == [
            "child released",
            "child it was released, or given to another process",
        ]
    assert parent.lines(2) == ["child None", "child waits"]
    eventually(lambda: queued(redis, 1))
    renewed(redis)
    parent.go_on()
    assert sorted(parent.lines(2)) == ["child held", "parent released"]
    assert parent.says() == "ended 0"
    assert parent.ends() == 0
    assert not remains(redis)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_lease_that_is_given_to_a_child(start: Start, redis: Redis, method: str) -> None:
    """As a text, for a lease can't be pickled: the child renews and releases it from then on."""
    parent = start("tests.faults.fork_programs:inherit", method)
    assert parent.says() == "True", "the error says what to send instead"
    word, fencing_token = parent.says().split()
    assert word == "parent"
    assert sorted(parent.lines(2)) == [f"child {fencing_token}", "parent released"]
    renewed(redis)
    renewed(redis)
    parent.go_on()
    assert parent.says() == "ended 0"
    assert parent.ends() == 0
    assert not remains(redis)


def test_a_fork_in_the_middle_of_everything(start: Start, beside: Proxy, redis: Redis) -> None:
    """While other threads have an acquire and a renewal under way, and wait: the child is not
    held up by what they held at that moment, and takes no answer that was meant for them."""
    acquire, extend = script("mutex_acquire"), script("mutex_extend")
    acquiring = beside.on(lambda words: acquire(words) and b"slow" in words, Fault.HOLD_REQUEST)
    renewing = beside.on(extend, Fault.HOLD_REPLY)
    with redis_lock("taken"):
        parent = start("tests.faults.fork_programs:busy_threads", url=beside.url)
        acquiring.happened()
        renewing.happened()
        eventually(lambda: queued(redis, 1, "taken"))
        parent.go_on()
        assert parent.says() == "child holds"
        renewed(redis, "of the child")
        parent.go_on()
        assert parent.says() == "child released"
        eventually(lambda: queued(redis, 2, "taken"))
        acquiring.let_go()
        renewing.let_go()
        assert parent.says() == "parent had slow"
    assert sorted(parent.lines(2)) == ["child had taken", "parent had taken"]
    assert parent.lines(2) == ["parent held", "parent released"]
    assert parent.ends() == 0
    for name in ("job", "slow", "taken", "of the child"):
        assert not remains(redis, name)
