"""Real processes: their leases live as long as they do, gevent, and many that contend.

Those that are killed, stopped and forked are in tests/faults/.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, redis_lock
from tests.processes import Start
from tests.waiting import eventually

pytestmark = pytest.mark.slow

KEY = "redislock:{job}"
QUEUE = f"{KEY}:queue"


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


def test_gevent(start: Start, redis: Redis) -> None:
    """Under monkey-patching greenlets exclude each other, and waiting stops nobody else."""
    pytest.importorskip("gevent")
    worker = start("gevent")
    word, ticks = worker.says().split()
    assert word == "ticks"
    assert int(ticks) > 20
    assert worker.ends() == 0
    assert not redis.exists(KEY, QUEUE)


def test_loops_that_were_closed_carelessly_are_forgotten(start: Start) -> None:
    """A loop that ended without closing what was begun in it keeps its connection only until
    the next loop comes."""
    # At a server where nobody else comes and goes.
    with RedisServer() as server, Redis.from_url(server.url) as redis:
        before = len(redis.client_list())
        worker = start("careless", url=server.url)
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
