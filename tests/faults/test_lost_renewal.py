"""Renewals whose request or answer is lost: two change nothing, and of more the holder learns
before anybody else has the lock."""

from __future__ import annotations

import threading
import time

import pytest
from redis import Redis

from django_redislock import Lease, LeaseLost, LeaseState, redis_lock
from django_redislock.base.clock import now
from tests.contract.api import Api
from tests.faults.proxy import Fault, Proxy, anything, script
from tests.faults.scene import (
    EXTEND,
    FOR_EVER,
    Scene,
    eventually,
    through_both_ports,
    with_every_fault,
)
from tests.waiting import PATIENCE

HELD, UNKNOWN, LOST = LeaseState.HELD, LeaseState.UNKNOWN, LeaseState.LOST


class Witness:
    """Remembers what a lease says of itself, and until when it said that it is held."""

    def __init__(self, lease: Lease) -> None:
        self.states: list[LeaseState] = []
        self.believed = 0.0
        """By the clock of the server, which is this machine's."""
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            before = time.time()
            state = self._lease.state
            if self.states[-1:] != [state]:
                self.states.append(state)
            if state in (HELD, UNKNOWN):
                self.believed = before

    def ends(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)


def nothing_changes(scene: Scene, losses: int, ttl: float) -> None:
    """The lease is unknown for a while, and never lost."""
    lost = threading.Event()
    lease = scene.acquire(ttl=ttl, on_lost=lambda lease: lost.set())
    witness = Witness(lease)
    rule = scene.lose(EXTEND, times=losses)
    rule.happened(losses)
    eventually(lambda: witness.states == [HELD, UNKNOWN, HELD] or LOST in witness.states)
    witness.ends()
    assert witness.states == [HELD, UNKNOWN, HELD]
    assert rule.count == losses
    scene.owned(lease)
    assert 0 < lease.remaining() <= scene.redis.pttl(scene.key) / 1000 <= ttl
    lease.check()
    assert not lost.is_set()
    scene.release_last(lease)


@with_every_fault
def test_one_lost(scene: Scene) -> None:
    """It is unknown, then held again."""
    nothing_changes(scene, losses=1, ttl=2)


@with_every_fault
def test_two_lost(scene: Scene) -> None:
    """The third is in time."""
    nothing_changes(scene, losses=2, ttl=5)


@pytest.mark.alone("a lease of one second has a third of a second for each try")
@through_both_ports
def test_one_lost_of_a_short_lease(scene: Scene) -> None:
    """A lease that lives for a second does not wait for an answer for longer than that."""
    nothing_changes(scene, losses=1, ttl=1)


@with_every_fault
def test_all_lost(scene: Scene) -> None:
    """It is lost at its own deadline, before the server gives the lock to the next one; its
    holder is told at once, and at the end of its block."""
    told: list[float] = []
    witnesses: list[Witness] = []
    ends: list[float] = []
    waiters = []
    rule = scene.lose(EXTEND, times=FOR_EVER, fault=Fault.LOSE_REQUEST)

    def body(lease: Lease) -> None:
        ends.append(now() + lease.remaining())
        witnesses.append(Witness(lease))
        waiters.append(scene.start_direct())
        eventually(lambda: lease.state == LOST)
        with pytest.raises(LeaseLost, match="ttl of 1 s passed before it was renewed"):
            lease.check()
        waiters.append(waiters.pop().result(PATIENCE))

    lock = scene.lock(ttl=1, on_lost=lambda lease: told.append(now()))
    with pytest.raises(LeaseLost, match="ttl of 1 s passed before it was renewed"):
        scene.api.enter(lock, body)
    assert rule.count >= 1
    (witness,), (successor,) = witnesses, waiters
    witness.ends()
    assert witness.states[-1] == LOST
    assert witness.states == [state for state in (HELD, UNKNOWN, LOST) if state in witness.states]
    assert witness.believed < successor.acquired_at.timestamp()
    scene.owned(successor)
    eventually(lambda: told)
    assert len(told) == 1
    assert 0 <= told[0] - ends[0] < 1, "told at its own deadline"
    scene.release_last(successor)


@with_every_fault
def test_silence(scene: Scene) -> None:
    """A holder that gets no answer at all, not even on a new connection, is told at its own
    deadline that the lease is lost, however long the client's own retries go on."""
    told: list[float] = []
    lease = scene.acquire(ttl=1, on_lost=lambda lease: told.append(now()))
    ends = now() + lease.remaining()
    scene.meet()
    silence = scene.proxy.on(anything, Fault.LOSE_REQUEST, times=FOR_EVER)
    eventually(lambda: told)
    silence.let_go()
    assert 0 <= told[0] - ends < 1
    scene.meet()
    with pytest.raises(LeaseLost):
        scene.api.release(lease)


@through_both_ports
def test_a_ttl_that_somebody_removed(scene: Scene) -> None:
    """The next renewal sets it again, so that a crash of the holder still frees the lock."""
    lease = scene.acquire(ttl=1)
    assert scene.redis.persist(scene.key)
    assert scene.redis.ttl(scene.key) == -1
    eventually(lambda: 0 < scene.redis.pttl(scene.key) <= 1000)
    scene.owned(lease)
    scene.release_last(lease)


@through_both_ports
def test_a_ttl_that_somebody_removed_when_nobody_renews(scene: Scene) -> None:
    """A lease that isn't renewed ends for its holder all the same, and its release frees the
    lock."""
    lease = scene.acquire(ttl=0.3, renew=False)
    assert scene.redis.persist(scene.key)
    eventually(lambda: lease.state == LOST)
    with pytest.raises(LeaseLost):
        scene.api.release(lease)
    scene.is_free(after=lease)


def test_a_lost_answer_to_what_is_written_down(api: Api, proxy: Proxy) -> None:
    """Writing a lease down, for people, costs no renewal more than an answer that is lost."""
    rule = proxy.on(script("mutex_write_down"), Fault.LOSE_REPLY)
    lease = api.acquire(redis_lock("job", ttl=1.5))
    rule.happened()
    ends = now() + 3
    eventually(lambda: lease.state != HELD or now() > ends)
    assert lease.state == HELD
    api.release(lease)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.RESET_BEFORE])
def test_what_was_not_written_down(api: Api, proxy: Proxy, redis: Redis, fault: Fault) -> None:
    """It is written down with one of the next renewals."""
    rule = proxy.on(script("mutex_write_down"), fault)
    lease = api.acquire(redis_lock("job", ttl=1.5))
    rule.happened()
    eventually(lambda: redis.zscore("redislock:index", "redislock:{job}"))
    assert lease.state == HELD
    api.release(lease)
