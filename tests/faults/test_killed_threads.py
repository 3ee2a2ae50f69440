"""Threads that are killed by an asynchronous exception, as timeouts of task queues do it.

Where else it may come than where these tests have it, test_interruptions.py goes through.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
from redis import Redis

from django_redislock import Lease, redis_lock
from tests.faults.proxy import Fault, Proxy, script
from tests.faults.remains import queued, remains
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


class Killed(BaseException):
    pass


class Victim(threading.Thread):
    """Enters a block and stays there."""

    def __init__(self, stays: Callable[[Lease], object]) -> None:
        super().__init__()
        self._stays = stays
        self.inside = threading.Event()
        self.killed = False
        self.start()

    def run(self) -> None:
        try:
            with redis_lock("job", wait=None) as lease:
                self.inside.set()
                self._stays(lease)
        except Killed:
            self.killed = True

    def kill(self) -> None:
        """It raises as soon as it runs Python code."""
        ident = ctypes.c_ulong(self.ident or 0)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Killed)) == 1

    def dies(self) -> None:
        self.join(PATIENCE)
        assert self.killed


def forever(lease: Lease) -> None:
    while True:
        threading.Event().wait(0.001)


def for_a_moment(lease: Lease) -> None:
    pass


def test_in_its_block(redis: Redis) -> None:
    """Leaving it releases the lock."""
    victim = Victim(forever)
    assert victim.inside.wait(PATIENCE)
    victim.kill()
    victim.dies()
    assert not remains(redis)


def test_while_it_waits(redis: Redis) -> None:
    """It leaves the queue at the end of a slice, which is when it looks again; or from the
    background, if its request to queue had not been answered."""
    with redis_lock("job"):
        victim = Victim(for_a_moment)
        eventually(lambda: queued(redis, 1))
        victim.kill()
        victim.dies()
        assert not victim.inside.is_set()
        eventually(lambda: remains(redis) == [KEY, "redislock:index"])
    assert not remains(redis)


def test_while_it_acquires(proxy: Proxy, redis: Redis) -> None:
    """The server has given it the lock: it gives it back before its block has begun."""
    acquiring = proxy.on(script("mutex_acquire"), Fault.HOLD_REPLY)
    victim = Victim(for_a_moment)
    eventually(lambda: redis.exists(KEY))
    victim.kill()
    acquiring.let_go()
    victim.dies()
    assert not victim.inside.is_set()
    eventually(lambda: not remains(redis))


@pytest.mark.parametrize("fault", [Fault.HOLD_REQUEST, Fault.HOLD_REPLY])
def test_while_it_releases(proxy: Proxy, redis: Redis, fault: Fault) -> None:
    """It has released."""
    releasing = proxy.on(script("mutex_release"), fault)
    victim = Victim(for_a_moment)
    releasing.happened()
    victim.kill()
    releasing.let_go()
    victim.dies()
    assert victim.inside.is_set()
    assert not remains(redis)
