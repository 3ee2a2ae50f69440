"""A release whose request or answer is lost: never a false "not owned", and nothing left."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseRevoked,
    LeaseState,
    LockUnavailable,
)
from django_redislock.primitives import queued
from tests.faults.proxy import Fault, script
from tests.faults.scene import (
    FOR_EVER,
    RELEASE,
    Scene,
    eventually,
    in_every_way,
    through_both_ports,
    with_every_fault,
)
from tests.waiting import PATIENCE


def release(scene: Scene, lease: Lease) -> None:
    """Release it, and repeat it where it has to be repeated."""
    if scene.tries == 1:
        with pytest.raises(LockUnavailable):
            scene.api.release(lease)
    scene.release(lease)


@through_both_ports
def test_repeated_after_it_was_never_sent(scene: Scene) -> None:
    """A release that never left this process has released nothing: if others hold the lock when
    it is repeated, the lease was lost."""
    lease = scene.acquire()
    scene.meet()
    scene.proxy.cut()
    with pytest.raises(LockUnavailable):
        scene.api.holder(scene.lock())  # the connection is away, and this process knows it
    with pytest.raises(LockUnavailable) as caught:
        scene.api.release(lease)
    assert not caught.value.doubtful
    scene.redis.delete(scene.key)
    successor = scene.acquire_direct()
    scene.meet()
    lease._watchdog._to_release.clear()  # else the background may be told at this moment
    scene.proxy.mend()
    with pytest.raises(LeaseLost):
        scene.api.release(lease)
    scene.owned(successor)
    scene.release(successor)


@with_every_fault
def test_repeated_when_its_time_is_over(scene: Scene) -> None:
    """A lease that was given back in time is not reported as lost, however late the answer is."""
    lost = threading.Event()
    lease = scene.acquire(ttl=0.9, on_lost=lambda lease: lost.set())
    rule = scene.lose(RELEASE, times=scene.tries)
    with pytest.raises(LockUnavailable):
        scene.api.release(lease)
    assert rule.count == scene.tries
    if lease.remaining() == 0:
        return  # a slow machine: it really was too late
    eventually(lambda: lease.remaining() == 0 and not scene.redis.exists(scene.key))
    assert lease._lifetime.lost is None
    scene.release(lease)
    assert not lost.is_set()
    eventually(lambda: scene.left() in ([], ["redislock:index"]))


@with_every_fault
def test_leaving_a_block_while_others_wait(scene: Scene) -> None:
    """The body has run under the lock, so nothing is raised. The waiters get the lock in the
    background, once."""
    waiters = []

    def body(lease: object) -> None:
        waiters.append(scene.start_direct())
        scene.queued(1)
        waiters.append(scene.start_direct())
        scene.queued(2)
        scene.lose(RELEASE, times=scene.tries)

    scene.api.enter(scene.lock(ttl=600), body)
    first, second = (waiters[0].result(PATIENCE), waiters[1])
    scene.owned(first)
    assert not second.done()
    scene.release(first)
    scene.release_last(scene.got(second))


@through_both_ports
def test_left_while_nobody_is_reached(scene: Scene) -> None:
    """A block whose lease ends with its ttl, since the release could never be sent, is no lost
    lease: nobody is told so, and the next one has the lock in time."""
    lost = threading.Event()

    def body(lease: object) -> object:
        scene.meet()
        scene.proxy.cut()
        return lease

    lock = scene.lock(ttl=1, on_lost=lambda lease: lost.set())
    lease = scene.api.enter(lock, body)
    successor = scene.got(scene.start_direct())
    eventually(lambda: lease.remaining() == 0)
    assert lease._lifetime.lost is None
    assert lease.state == LeaseState.RELEASED
    scene.meet()
    scene.proxy.mend()
    scene.owned(successor)
    assert not lost.is_set()
    scene.release_last(successor)


@with_every_fault
def test_of_a_lease_that_an_operator_cleared(scene: Scene) -> None:
    """Lost messages don't hide it: who cleared it and why is told nevertheless."""
    lease = scene.acquire(ttl=600)
    scene.api.clear(scene.lock(), by="eva", reason="stuck")
    rule = scene.lose(RELEASE)
    with pytest.raises(LeaseRevoked, match=r"cleared by eva \(stuck\)"):
        release(scene, lease)
    assert rule.count == 1
    assert lease.state == LeaseState.LOST
    scene.is_free(after=lease)


@through_both_ports
def test_no_renewal_while_it_is_released(scene: Scene) -> None:
    """Of a block that was left no lease lives on, also when its release never gets through: it
    is not renewed any more, and ends with its ttl."""
    rule = scene.lose(RELEASE, times=FOR_EVER, fault=Fault.RESET_BEFORE)
    scene.api.enter(scene.lock(ttl=1), lambda lease: None)
    eventually(lambda: not scene.redis.exists(scene.key))
    assert rule.count >= 2
    rule.let_go()
    eventually(lambda: scene.left() in ([], ["redislock:index"]))


@in_every_way
def test_a_neighbour_waits_for_it(scene: Scene) -> None:
    """It would be told by the answer that is lost; its next slice finds the lock its own."""
    lease = scene.acquire()
    waiter = scene.start()
    (token,) = scene.queued(1)
    eventually(scene.listening)
    scene.lose(RELEASE, token=lease.token)
    release(scene, lease)
    successor = scene.got(waiter)
    assert successor.token == token
    scene.release_last(successor)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters don't ask by themselves."""
    monkeypatch.setattr(queued, "slice_for", lambda *args: 600.0)


@pytest.mark.usefixtures("_patient")
@through_both_ports
def test_a_neighbour_has_the_lock(scene: Scene) -> None:
    """The server has handed the lock to a waiter of this process, and the answer that says so is
    lost: the waiter asks at once."""
    lease = scene.acquire()
    waiter = scene.start()
    scene.queued(1)
    scene.lose(script("mutex_release", short=False))  # the short one has done nothing
    with suppress(LockUnavailable):
        scene.api.release(lease)
    scene.release_last(scene.got(waiter))
