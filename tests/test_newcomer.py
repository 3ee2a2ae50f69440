"""What the requests of a free lock leave alone, in a process that knows of nobody else."""

from __future__ import annotations

import signal
from collections.abc import Callable

from redis import Redis

from django_redislock import redis_lock
from django_redislock.base import tokens
from django_redislock.primitives import record
from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.processes import Worker
from tests.waiting import eventually


def test_nobody_passes_those_who_wait(start: Callable[..., Worker], redis: Redis) -> None:
    """The lease has ended, and the waiter of another process, which is stopped, does not know."""
    lease = redis_lock("job", renew=False).acquire()
    assert lease is not None
    waiter = start("wait")
    assert waiter.says() == "waiting"
    eventually(lambda: redis.zcard("redislock:{job}:queue"))
    waiter.stop()
    redis.delete("redislock:{job}")
    assert redis_lock("job").acquire(wait=0) is None
    waiter.signal(signal.SIGCONT)
    assert waiter.says().startswith("holding")


def test_a_release_that_comes_late_writes_no_record(redis: Redis) -> None:
    """It was repeated meanwhile, and its record was forgotten since."""
    keys, token = Keys.of("redislock", "once:job"), tokens.new()
    port = SyncPort(server_of("default"))
    redis.set(keys.gone(token), "withdrawn")
    args = [token, 0, "", b"done", "", 0]
    run(port.script("record_release", [*keys.mutex(token), keys.record], args))
    assert run(record.read(port, keys)) is None
