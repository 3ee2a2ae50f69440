"""gevent, event loops and threads in real processes.

Those that are killed, stopped and forked, and those that contend, are in tests/faults/.
"""

from __future__ import annotations

from subprocess import DEVNULL

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock import LeaseLost, redis_lock
from tests.processes import Start
from tests.waiting import eventually

pytestmark = pytest.mark.slow

KEY = "redislock:{job}"
QUEUE = f"{KEY}:queue"


def test_gevent(start: Start, redis: Redis) -> None:
    """Under monkey-patching greenlets exclude each other, and waiting stops nobody else."""
    pytest.importorskip("gevent")
    worker = start("gevent")
    word, ticks = worker.says().split()
    assert word == "ticks"
    assert int(ticks) > 20
    assert worker.ends() == 0
    assert not redis.exists(KEY, QUEUE)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("eventlet", "ImproperlyConfigured eventlet has replaced the sockets or threads"),
        ("trio", "RuntimeError Coroutines take locks in an event loop of asyncio"),
    ],
)
def test_what_is_not_supported(kind: str, says: str, start: Start, redis: Redis) -> None:
    """The first lock says so, and what to do instead. Nothing is locked."""
    pytest.importorskip(kind)
    worker = start("refused", kind, stderr=DEVNULL)
    assert worker.says().startswith(says)
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
