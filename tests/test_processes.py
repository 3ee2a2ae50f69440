"""Real processes, killed with real signals; fork, gevent, and many that contend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis

from django_redislock import LeaseLost, redis_lock
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
QUEUE = f"{KEY}:queue"
ROOT = Path(__file__).parent.parent


class Worker:
    """A process that runs one of the programs in worker.py."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )

    def says(self) -> str:
        """The next line that it says; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def holds(self) -> int:
        """Wait until it says that it holds the lock; returns its fencing token."""
        while (line := self.says()) == "waiting":
            pass
        word, fencing_token = line.split()
        assert word == "holding"
        return int(fencing_token)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start workers; whatever becomes of the test, none is left."""
    workers: list[Worker] = []

    def start(*command: str) -> Worker:
        workers.append(Worker(*command))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


Start = Callable[..., Worker]


def test_a_killed_holder_frees_the_lock_with_its_ttl(start: Start, redis: Redis) -> None:
    """The waiter has it when the lease ends, with a larger fencing token."""
    holder = start("hold", "1")
    first = holder.holds()
    waiter = start("wait")
    eventually(lambda: redis.zcard(QUEUE) == 1)
    holder.process.send_signal(signal.SIGKILL)
    assert waiter.holds() > first
    waiter.go_on()
    assert waiter.ends() == 0
    assert not redis.exists(KEY, QUEUE)


def test_a_living_holder_keeps_the_lock(start: Start, redis: Redis) -> None:
    """For many ttls, as long as its process lives."""
    holder = start("hold", "0.3")
    holder.holds()
    for _ in range(6):
        before = redis.zscore("redislock:index", "job")
        eventually(lambda before=before: redis.zscore("redislock:index", "job") > before)
    assert redis_lock("job").acquire(wait=0) is None
    holder.go_on()
    assert holder.says() == "released"
    assert holder.ends() == 0


def test_a_killed_waiter_is_passed_over(start: Start, redis: Redis) -> None:
    """The one behind it gets the lock as soon as it is released."""
    with redis_lock("job"):
        killed = start("wait")
        eventually(lambda: redis.zcard(QUEUE) == 1)
        behind = start("wait")
        eventually(lambda: redis.zcard(QUEUE) == 2)
        listening = len(redis.pubsub_channels("redislock:inbox:*"))
        killed.process.send_signal(signal.SIGKILL)
        # The kernel closes its connections; Redis notices in the next turn of its loop.
        eventually(lambda: len(redis.pubsub_channels("redislock:inbox:*")) < listening)
    assert redis.exists(KEY), "it was handed over in the step of the release"
    behind.holds()


def test_a_stopped_waiter_does_not_hold_up_the_others(start: Start, redis: Redis) -> None:
    """It is handed the lock, does not come, and the next one has it after the claim window."""
    with redis_lock("job"):
        stopped = start("wait")
        eventually(lambda: redis.zcard(QUEUE) == 1)
        behind = start("wait")
        eventually(lambda: redis.zcard(QUEUE) == 2)
        stopped.process.send_signal(signal.SIGSTOP)
    first = behind.holds()
    stopped.process.send_signal(signal.SIGCONT)
    behind.go_on()
    assert stopped.holds() > first


def test_a_stopped_holder_is_told_when_it_goes_on(start: Start, redis: Redis) -> None:
    """Its block raises LeaseLost, and the lease of its successor is not touched."""
    holder = start("hold", "0.5")
    holder.holds()
    holder.process.send_signal(signal.SIGSTOP)
    with redis_lock("job", wait=PATIENCE) as lease:
        holder.process.send_signal(signal.SIGCONT)
        holder.go_on()
        assert holder.ends() != 0
        lease.check()
        assert redis.get(KEY).decode().startswith(lease.token)


@pytest.mark.parametrize("what", ["hold", "wait"])
def test_an_interrupted_process_leaves_nothing(start: Start, redis: Redis, what: str) -> None:
    """Ctrl-C in the block or while waiting: the lock is released, or the queue left."""
    if what == "hold":
        worker = start("hold", "30")
        worker.holds()
        worker.process.send_signal(signal.SIGINT)
        worker.ends()
        assert not redis.exists(KEY)
    else:
        with redis_lock("job"):
            worker = start("interrupted")
            assert worker.says() == "waiting"
            eventually(lambda: redis.zcard(QUEUE) == 1)
            worker.process.send_signal(signal.SIGINT)
            assert worker.says() == "interrupted"
            assert not redis.exists(QUEUE)


def test_fork(start: Start, redis: Redis) -> None:
    """The child neither renews nor releases its parent's lease, can lock for itself, and is
    woken through an inbox of its own."""
    inboxes = len(redis.pubsub_channels("redislock:inbox:*"))
    parent = start("fork", "0.6")
    assert parent.says() == "child released"
    assert parent.says() == "child None"
    assert parent.says() == "child held"
    assert parent.says() == "child waits"
    eventually(lambda: redis.zcard(QUEUE) == 1)
    assert len(redis.pubsub_channels("redislock:inbox:*")) == inboxes + 2
    before = redis.zscore("redislock:index", "job")
    eventually(lambda: redis.zscore("redislock:index", "job") > before)
    parent.go_on()
    assert parent.says() == "parent held"
    assert sorted([parent.says(), parent.says()]) == ["child held", "parent released"]
    assert parent.ends() == 0


def test_gevent(start: Start, redis: Redis) -> None:
    """Under monkey-patching greenlets exclude each other, and waiting stops nobody else."""
    pytest.importorskip("gevent")
    worker = start("gevent")
    word, ticks = worker.says().split()
    assert word == "ticks"
    assert int(ticks) > 20
    assert worker.ends() == 0
    assert not redis.exists(KEY, QUEUE)


def test_loops_that_were_closed_carelessly_are_forgotten(start: Start, redis: Redis) -> None:
    """A loop that ended without closing what was begun in it keeps its connection only until
    the next loop comes."""
    before = len(redis.client_list())
    worker = start("careless")
    assert worker.says() == "loops 1"
    assert len(redis.client_list()) == before + 1
    worker.go_on()
    assert worker.says() == "loops 0"
    eventually(lambda: len(redis.client_list()) == before)


def contention(start: Start, path: Path, processes: int, rounds: int) -> list[list[int]]:
    """What each entry in the section wrote down: begin, end, fencing token."""
    path.touch()
    workers = [start("contend", str(path), str(rounds)) for _ in range(processes)]
    for worker in workers:
        assert worker.says() == "ready"
    for worker in workers:
        worker.go_on()
    for worker in workers:
        assert worker.ends() == 0
    return sorted([int(word) for word in line.split()] for line in path.read_text().splitlines())


def test_contention(start: Start, redis: Redis, tmp_path: Path) -> None:
    """Processes that enter a section as often as they can never overlap in it, and each one's
    fencing token is larger than the last."""
    entries = contention(start, tmp_path / "journal", processes=4, rounds=50)
    assert len(entries) == 200
    for (_, end, fence), (begin, _, next_fence) in pairwise(entries):
        assert end <= begin
        assert fence < next_fence
    assert not redis.exists(KEY, QUEUE)


def test_the_threads_of_a_lost_holder_are_not_confused(redis: Redis) -> None:
    """A lease that is lost in this process does not keep its thread from taking a new one."""
    lease = redis_lock("job", ttl=0.2, renew=False).acquire()
    assert lease is not None
    eventually(lambda: not redis.exists(KEY))
    with redis_lock("job", wait=5) as again:
        assert again.token != lease.token
        with pytest.raises(LeaseLost):
            lease.release()
        again.check()
