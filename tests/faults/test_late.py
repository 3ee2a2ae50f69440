"""Messages that arrive late, when nobody expects them any more: they change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import LeaseState, LockUnavailable
from tests.faults.proxy import Fault, Rule
from tests.faults.scene import (
    ACQUIRE,
    EXTEND,
    RELEASE,
    TIMEOUT,
    Scene,
    eventually,
    through_both_ports,
    through_both_ports_patiently,
)
from tests.waiting import PATIENCE

HOLD = Fault.HOLD_REQUEST


def arrive(rule: Rule) -> None:
    """Let go what is held back, and wait until the server has carried it out."""
    rule.let_go()
    eventually(lambda: rule.carried_out == rule.count)


@through_both_ports
def test_acquire_after_a_refusal(scene: Scene) -> None:
    """If the answer to a second send was "not acquired", the first one does not get the lock when
    it has become free."""
    held = scene.acquire_direct()
    rule = scene.lose(ACQUIRE, fault=HOLD)
    assert scene.api.acquire(scene.lock(), wait=1.5 * TIMEOUT) is None
    scene.release(held)
    arrive(rule)
    scene.is_free(after=held)


@through_both_ports
def test_acquire_after_giving_up(scene: Scene) -> None:
    """A waiter that gave up is not put into the queue again, and is not handed the lock."""
    held = scene.acquire_direct()
    rule = scene.lose(ACQUIRE, fault=HOLD)
    waiter = scene.start(wait=1)
    scene.queued(1)
    assert rule.count == 1
    assert waiter.result(PATIENCE) is None
    # Its time is over, so it is withdrawn in the background.
    eventually(lambda: scene.redis.keys(f"{scene.key}:gone:*"))
    arrive(rule)
    assert scene.waiting() == []
    scene.release_last(held)


@through_both_ports
def test_acquire_while_a_successor_holds(scene: Scene) -> None:
    """It takes nothing away, and does not wait."""
    rule = scene.lose(ACQUIRE, fault=HOLD)
    lease = scene.acquire(wait=None)
    scene.release(lease)
    successor = scene.acquire_direct()
    ttl = scene.redis.pttl(scene.key)
    arrive(rule)
    scene.owned(successor)
    assert scene.redis.pttl(scene.key) <= ttl
    assert scene.waiting() == []
    scene.release_last(successor)


@through_both_ports
def test_release_after_another_acquire(scene: Scene) -> None:
    """It leaves the next lease alone, also when that is of the same thread or task, and hands
    nothing to who waits for that one."""
    lease = scene.acquire()
    rule = scene.lose(RELEASE, fault=HOLD)
    with pytest.raises(LockUnavailable):
        scene.api.release(lease)
    scene.release(lease)
    successor = scene.acquire()
    waiter = scene.start_direct()
    scene.queued(1)
    arrive(rule)
    scene.owned(successor)
    assert len(scene.waiting()) == 1
    scene.release(successor)
    scene.release_last(scene.got(waiter))


@through_both_ports
def test_renewal_after_the_release(scene: Scene) -> None:
    """It does not bring the lease back, neither at its key nor in the index."""
    lease = scene.acquire(ttl=1)
    rule = scene.lose(EXTEND, fault=HOLD)
    rule.happened()
    scene.release(lease)
    arrive(rule)
    assert lease.state == LeaseState.RELEASED
    scene.is_free(after=lease)


@through_both_ports
def test_extension_while_a_successor_holds(scene: Scene) -> None:
    """It lengthens nobody else's lease."""
    lease = scene.acquire()
    rule = scene.lose(EXTEND, fault=HOLD)
    with pytest.raises(LockUnavailable):
        scene.api.extend(lease, 600)
    scene.release(lease)
    successor = scene.acquire_direct(ttl=20, renew=False)
    arrive(rule)
    scene.owned(successor)
    assert scene.redis.pttl(scene.key) <= 20_000
    scene.release_last(successor)


@through_both_ports
def test_an_answer_that_nobody_waits_for(scene: Scene) -> None:
    """It is not taken for the answer to the next command: its connection is not used again."""
    answered = scene.lose(ACQUIRE, fault=Fault.HOLD_REPLY)
    with pytest.raises(LockUnavailable):
        scene.acquire(wait=0)
    eventually(lambda: scene.left() == [])
    sent = scene.lose(ACQUIRE, fault=HOLD)
    acquiring = scene.start(wait=20)
    sent.happened()
    arrive(answered)
    arrive(sent)
    scene.release_last(scene.got(acquiring))


@through_both_ports_patiently
def test_an_answer_that_is_slow(scene: Scene) -> None:
    """Its holder believes in its lease for no longer than the server keeps it: the deadline
    counts from the sending, also that of an extension."""

    def slowly(call: Callable[[], Any], rule: Rule) -> Any:
        future = scene.api.start(call)
        rule.happened()
        eventually(lambda: rule.carried_out == 1)
        time.sleep(0.2)  # more than the margin for the drift of clocks
        rule.let_go()
        return future.result(PATIENCE)

    rule = scene.lose(ACQUIRE, fault=Fault.HOLD_REPLY)
    lease = slowly(lambda: scene.acquire(ttl=5, renew=False), rule)
    assert lease.remaining() <= scene.redis.pttl(scene.key) / 1000
    rule = scene.lose(EXTEND, fault=Fault.HOLD_REPLY)
    slowly(lambda: scene.api.extend(lease), rule)
    assert lease.remaining() <= scene.redis.pttl(scene.key) / 1000
    scene.release_last(lease)


@through_both_ports_patiently
def test_an_answer_that_comes_when_the_lease_has_ended(scene: Scene) -> None:
    """The deadline counts from the sending, so such an answer is worth nothing: it asks again
    while there is time to wait, and never runs a block without its lock."""
    rule = scene.lose(ACQUIRE, fault=Fault.HOLD_REPLY)

    def body(lease: object) -> None:
        scene.owned(lease)  # type: ignore[arg-type]

    entered = scene.api.start(lambda: scene.api.enter(scene.lock(ttl=0.8, wait=20), body))
    rule.happened()
    eventually(lambda: rule.carried_out == 1 and not scene.redis.exists(scene.key))
    rule.let_go()
    entered.result(PATIENCE)
    scene.is_free()
