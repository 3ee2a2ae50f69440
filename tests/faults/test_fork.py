"""Forked processes: a child has no part in its parent's leases, and works like any other."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import django
import pytest
from django_redis import get_redis_connection
from redis import Redis

from django_redislock import Lease, LeaseLost, redis_lock
from django_redislock.base import process as this_process
from django_redislock.base import tokens
from django_redislock.primitives.keys import presence
from django_redislock.transport.inbox import Inbox
from django_redislock.transport.server import server_of
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import queued, remains
from tests.processes import Start
from tests.waiting import eventually
from tests.worker import say, told


def renewed(redis: Redis, name: str = "job") -> None:
    """Wait until the lease has been renewed once more."""
    before = redis.pexpiretime(f"redislock:{{{name}}}")
    assert before is not None
    eventually(lambda: (redis.pexpiretime(f"redislock:{{{name}}}") or 0) > before)


def test_fork(start: Start, redis: Redis) -> None:
    """The child neither renews nor releases its parent's lease, can lock for itself, and is
    woken through an inbox of its own."""
    before = set(redis.pubsub_channels("redislock:inbox:*"))
    parent = start("tests.faults.test_fork:both")
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
    parent = start("tests.faults.test_fork:untold")
    assert parent.lines(3) == ["child released", "child None", "child holds"]
    for _ in range(4):
        renewed(redis, "of the child")
    parent.go_on()
    assert parent.lines(3) == ["child released", "parent held", "parent released"]
    assert parent.ends() == 0
    assert not remains(redis)


def test_a_fork_while_a_thread_holds_a_lock_of_the_package(start: Start) -> None:
    """The child does not wait for a thread that stayed with its parent."""
    parent = start("tests.faults.test_fork:while_locked")
    assert parent.says() == "child held"
    assert parent.ends() == 0


def test_beside_threads_that_use_locks(start: Start) -> None:
    """No child waits for what a thread of its parent had in its hands."""
    assert start("tests.faults.test_fork:beside_threads").says() == "hung 0"


def test_both_leave_the_block(start: Start, redis: Redis) -> None:
    """The child leaves the block in which it was forked, and ends: the parent holds on."""
    parent = start("tests.faults.test_fork:both_leave")
    assert parent.lines(2) == ["child released", "parent held"]
    renewed(redis)
    parent.go_on()
    assert parent.says() == "parent released"
    assert parent.ends() == 0
    assert not remains(redis)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(start: Start, redis: Redis, method: str) -> None:
    """A child of either kind waits for its parent as any other process would."""
    parent = start("tests.faults.test_fork:multiprocess", method)
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
    parent = start("tests.faults.test_fork:inherit", method)
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
    acquiring = beside.on(
        lambda words: acquire(words) and b"redislock:{slow}" in words, Fault.HOLD_REQUEST
    )
    renewing = beside.on(extend, Fault.HOLD_REPLY)
    with redis_lock("taken"):
        parent = start("tests.faults.test_fork:busy_threads", url=beside.url)
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


# What the processes run. The test reads what parent and children say.

held: Any = None
"""The lease of the parent: a child that was forked has a copy of it."""


def as_a_child(lease: Lease) -> None:
    """The parent's lease is not the child's, and stays when it is released there."""
    try:
        lease.check()
    except LeaseLost:
        say("child", lease.state)
    lease.release()
    say("child", redis_lock("job").acquire(wait=0))


def both() -> None:
    """Fork while holding the lock; the child wants it, and takes another."""
    listening = server_of("default").kept(Inbox, "redislock")
    listening.start()
    listening.listening.wait()
    with redis_lock("job", ttl=1.5) as lease:
        if os.fork() == 0:
            as_a_child(lease)
            with redis_lock("of the child", wait=5) as own:
                say("child", own.state)
            say("child waits")
            with redis_lock("job", wait=None) as own:
                say("child", own.state)
            os._exit(0)
        told()
        lease.check()
        say("parent", lease.state)
    say("parent released")
    os.wait()


def untold() -> None:
    """Fork as a program in C does it, without Python's knowledge."""
    with redis_lock("job", ttl=1.5) as lease:
        # Python does not mend what its own threads were in the middle of: so they have to rest.
        redis = get_redis_connection("default")
        eventually(lambda: redis.exists(presence("redislock:index", tokens.process)))
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            as_a_child(lease)
            with redis_lock("of the child", ttl=1) as own:
                say("child holds")
                told()
                own.check()
            say("child released")
            os._exit(0)
        os.waitpid(child, 0)
        lease.check()
        say("parent", lease.state)
    say("parent released")


def while_locked() -> None:
    """Fork while another thread is where only one may be at a time."""
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with this_process._forgetting:
            inside.set()
            leave.wait()

    threading.Thread(target=stay).start()
    inside.wait()
    child = os.fork()
    if child == 0:
        with redis_lock("job") as lease:
            say("child", lease.state)
        os._exit(0)
    os.waitpid(child, 0)
    leave.set()


def beside_threads() -> None:
    """Fork again and again while other threads use locks; say how many children did not get
    theirs."""
    over = threading.Event()
    rounds = [0] * 8

    def work(number: int) -> None:
        while not over.is_set():
            with redis_lock(f"of thread {number}"):
                rounds[number] += 1

    # redis-py itself makes connections with its lock held, so they are all made before.
    pool: Any = server_of("default").shared_pool()
    for connection in [pool.get_connection() for _ in range(9)]:
        pool.release(connection)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while min(rounds) < 20:
        time.sleep(0.01)
    hung = 0
    for number in range(60):
        child = os.fork()
        if not child:
            signal.alarm(20)  # which ends a child that hangs
            with redis_lock(f"of child {number}"):
                os._exit(0)
        hung += os.waitpid(child, 0)[1] != 0
    over.set()
    for thread in threads:
        thread.join()
    say("hung", hung)


def both_leave() -> None:
    """Fork within a block: both processes leave it, and end as programs do."""
    with redis_lock("job", ttl=1.5) as lease:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            say("parent", lease.state)
            told()
            lease.check()
    if child:
        say("parent", lease.state)
    else:
        say("child", lease.state)
        sys.exit(0)


def child(method: str) -> None:
    """A child of multiprocessing."""
    if method != "fork":
        django.setup()
    else:
        say("child", held.state)
        try:
            held.check()
        except LeaseLost as lost:
            say("child", lost.why)
        held.release()
    say("child", redis_lock("job").acquire(wait=0))
    say("child waits")
    with redis_lock("job", wait=None) as lease:
        say("child", lease.state)


def multiprocess(method: str) -> None:
    """Hold the lock while a child that multiprocessing makes wants it."""
    global held
    with redis_lock("job", ttl=1.5) as held:
        process = multiprocessing.get_context(method).Process(target=child, args=(method,))
        process.start()
        told()
        held.check()
    say("parent", held.state)
    process.join()
    say("ended", process.exitcode)


def heir(pipe: Connection) -> None:
    """A child that is given the lease."""
    django.setup()
    pipe.send("ready")
    with Lease.restore(pipe.recv()) as lease:
        say("child", lease.fencing_token)
        pipe.recv()


def inherit(method: str) -> None:
    """Give the lease to a child."""
    context = multiprocessing.get_context(method)
    pipe, end_of_child = context.Pipe()
    process = context.Process(target=heir, args=(end_of_child,))
    process.start()
    pipe.recv()
    lease = redis_lock("job", ttl=1.5).acquire()
    assert lease is not None
    try:
        pipe.send(lease)
    except TypeError as error:
        say("send lease.export()" in str(error))
    say("parent", lease.fencing_token)
    pipe.send(lease.export())
    say("parent", lease.state)
    told()
    pipe.send("go on")
    process.join()
    say("ended", process.exitcode)


def busy_threads() -> None:
    """Fork while other threads wait, acquire and renew."""

    def hold_and_release(name: str) -> None:
        with redis_lock(name, wait=None) as lease:
            lease.check()
        say("parent had", name)

    with redis_lock("job", ttl=3) as lease:
        threads = [
            threading.Thread(target=hold_and_release, args=(name,)) for name in ("slow", "taken")
        ]
        for thread in threads:
            thread.start()
        told()
        if os.fork() == 0:
            with redis_lock("of the child", ttl=1):
                say("child holds")
                told()
            say("child released")
            with redis_lock("taken", wait=None):
                say("child had taken")
            os._exit(0)
        os.wait()
        lease.extend()  # its last renewal may be the one that got no answer
        say("parent", lease.state)
        for thread in threads:
            thread.join()
    say("parent", lease.state)
