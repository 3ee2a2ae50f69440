"""An acquire whose request or answer is lost: held, or cleanly failed, and nothing between."""

from __future__ import annotations

import pytest

from django_redislock import LeaseLost, LockUnavailable
from tests.faults.proxy import Fault, anything, script
from tests.faults.scene import (
    ACQUIRE,
    FOR_EVER,
    RELEASE,
    RESETS,
    Scene,
    eventually,
    in_every_way,
    through_both_ports,
    with_every_fault,
)
from tests.waiting import PATIENCE


@in_every_way
def test_one_lost(scene: Scene) -> None:
    """With wait=0, a free lock is acquired although the connection is lost. If another answer
    would have to be waited for, the error says that Redis could not be reached, and nothing is
    held."""
    rule = scene.lose(ACQUIRE)
    if scene.tries == 1:
        with pytest.raises(LockUnavailable, match=r"could not be reached|did not answer"):
            scene.acquire(wait=0)
        assert rule.count == 1
        scene.is_free()
        return
    lease = scene.acquire(wait=0)
    assert rule.count == 1
    scene.release_last(lease)


@with_every_fault
def test_all_lost_for_a_while(scene: Scene) -> None:
    """A waiter without limit goes on asking, and has the lock when the network is back."""
    rule = scene.lose(ACQUIRE, times=FOR_EVER)
    waiter = scene.start(wait=None)
    rule.happened(3)
    assert not waiter.done()
    rule.let_go()
    scene.release_last(scene.got(waiter))


@with_every_fault
def test_its_last_word_lost_too(scene: Scene) -> None:
    """When the release that undoes it is lost as well, it is said again in the
    background: the lock is free long before its ttl."""
    scene.lose(ACQUIRE, times=FOR_EVER, fault=Fault.RESET_AFTER)
    rule = scene.lose(RELEASE, times=scene.tries + 1)
    with pytest.raises(LockUnavailable):
        scene.acquire(wait=0, ttl=600)
    rule.happened(scene.tries + 1)
    eventually(lambda: scene.left() == [])
    scene.is_free()


@through_both_ports
def test_silence(scene: Scene) -> None:
    """A network that carries the acquire, and then nothing in either direction: it fails in
    time, and nothing is left when the network is back."""
    acquired = scene.lose(ACQUIRE)
    failing = scene.start(wait=0, ttl=600)
    acquired.happened()
    scene.meet()
    silence = scene.proxy.on(anything, Fault.LOSE_REQUEST, times=FOR_EVER)
    with pytest.raises(LockUnavailable):
        failing.result(PATIENCE)
    assert scene.redis.exists(scene.key), "the server did carry it out"
    silence.let_go()
    eventually(lambda: scene.left() == [])
    scene.is_free()


@with_every_fault
def test_lost_when_it_queues(scene: Scene) -> None:
    """It has its place in the queue nevertheless, once, before who comes later."""
    held = scene.acquire_direct()
    rule = scene.lose(ACQUIRE, times=2)
    first = scene.start()
    rule.happened(2)
    (token,) = scene.queued(1)
    seen = scene.seen()[token]
    second = scene.start_direct()
    assert scene.queued(2)[0] == token
    # It knows its place when it asks once more. Until then it would miss its claim window.
    eventually(lambda: scene.seen()[token] > seen)
    scene.release(held)
    lease = scene.got(first)
    assert not second.done()
    scene.release(lease)
    successor = scene.got(second)
    assert held.fencing_token < lease.fencing_token < successor.fencing_token
    scene.release_last(successor)


@in_every_way
def test_lost_when_it_confirms(scene: Scene) -> None:
    """A waiter to whom the lock was handed, and that no message reached, asks again and has it."""
    held = scene.acquire_direct()
    first = scene.start()
    (token,) = scene.queued(1)
    second = scene.start_direct()
    scene.queued(2)
    scene.meet()
    scene.proxy.deaf = True
    rule = scene.lose(ACQUIRE, token=token)
    scene.release(held)
    rule.happened()
    eventually(lambda: first.done() or second.done())
    if second.done():  # on a busy machine, it takes longer than the lock was handed over for
        scene.release(second.result(PATIENCE))
    lease = scene.got(first)
    assert lease.token == token
    scene.release(lease)
    scene.release(second.result(PATIENCE))
    scene.is_free(after=lease)


@with_every_fault
def test_a_waiter_that_can_not_confirm(scene: Scene) -> None:
    """Nor does a message reach it: after a few seconds the lock goes on to the next one. When the
    network is back, the waiter is still waiting, and gets the lock in its turn."""
    held = scene.acquire_direct()
    first = scene.start()
    (token,) = scene.queued(1)
    second = scene.start_direct()
    scene.queued(2)
    scene.meet()
    scene.proxy.deaf = True
    # What arrived would confirm it, so here nothing does.
    fault = Fault.RESET_BEFORE if scene.fault in RESETS else Fault.LOSE_REQUEST
    rule = scene.lose(ACQUIRE, times=FOR_EVER, token=token, fault=fault)
    scene.release(held)
    lease = scene.got(second)
    assert not first.done()
    rule.let_go()
    assert scene.queued(1) == [token]
    scene.release(lease)
    late = scene.got(first)
    assert late.fencing_token > lease.fencing_token
    scene.release_last(late)


@with_every_fault
def test_all_lost_while_it_waits(scene: Scene) -> None:
    """At the end of its time it is told that Redis could not be reached, and its place in the
    queue is gone; the holder and the other waiters notice nothing."""
    held = scene.acquire_direct()
    failing = scene.start(wait=3)
    (token,) = scene.queued(1)
    second = scene.start_direct()
    scene.queued(2)
    scene.lose(ACQUIRE, times=FOR_EVER, token=token)
    with pytest.raises(LockUnavailable):
        failing.result(PATIENCE)
    (remaining,) = scene.queued(1)
    assert remaining != token
    scene.owned(held)
    scene.release(held)
    scene.release_last(scene.got(second))


@with_every_fault
def test_lost_when_it_gives_up(scene: Scene) -> None:
    """A waiter whose last message is lost is told "not acquired", or that Redis could not be
    reached. It has left the queue."""

    def gives_up(words: list[bytes]) -> bool:
        return ACQUIRE(words) and words[-3] == b""  # no inbox; a ticket and `inherits` follow

    held = scene.acquire_direct()
    waiter = scene.start(wait=3)
    scene.queued(1)
    rule = scene.lose(gives_up)
    if scene.tries == 1:
        with pytest.raises(LockUnavailable):
            waiter.result(PATIENCE)
    else:
        assert waiter.result(PATIENCE) is None
    assert rule.count == 1
    assert scene.queued(0) == []
    scene.owned(held)
    scene.release_last(held)


@in_every_way
def test_a_restore(scene: Scene) -> None:
    """A lease that is continued in another process has one holder, or none. A lost connection is
    not noticed. If another answer would have to be waited for, restoring raises: then it may be
    tried again, or the lock is free."""
    text = scene.acquire().export()
    rule = scene.lose(script("mutex_adopt"))
    if scene.tries == 1:
        with pytest.raises(LockUnavailable):
            scene.api.restore(text)
    if scene.tries == 1 and rule.carried_out:
        scene.is_free()
        with pytest.raises(LeaseLost):
            scene.api.restore(text)
        return
    lease = scene.api.restore(text)
    scene.owned(lease)
    with pytest.raises(LeaseLost):
        scene.api.restore(text)
    scene.release_last(lease)
