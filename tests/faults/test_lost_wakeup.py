"""Waiters whose network fails while they wait: wake-ups lost, connections cut and mended."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from django_redislock import Lease
from tests.faults.scene import Scene, eventually, through_both_ports
from tests.waiting import PATIENCE


def pass_through(scene: Scene, wait: float | None = None) -> Future[Any]:
    """Begin to wait through the proxy, and give the lock back at once; returns the lease."""

    def enter() -> Lease:
        lease: Lease = scene.api.acquire(scene.lock(), wait=wait)
        scene.owned(lease)
        scene.release(lease)
        return lease

    return scene.api.start(enter)


def line_up(scene: Scene, number: int) -> tuple[list[Future[Any]], list[str]]:
    """So many wait, one after the other; returns them and their tokens in order."""
    waiters = []
    for already in range(number):
        waiters.append(pass_through(scene))
        scene.queued(already + 1)
    return waiters, scene.waiting()


def served(waiters: list[Future[Any]]) -> list[str]:
    """Wait for all of them; returns their tokens in the order in which they had the lock."""
    leases = [waiter.result(PATIENCE) for waiter in waiters]
    return [lease.token for lease in sorted(leases, key=lambda lease: lease.fencing_token)]


@through_both_ports
def test_messages_lost(scene: Scene) -> None:
    """The lock is handed to waiters that don't hear of it: the next slice of each finds it."""
    held = scene.acquire_direct()
    waiters, tokens = line_up(scene, 3)
    eventually(scene.listening)
    scene.meet()
    scene.proxy.deaf = True
    scene.release(held)
    assert scene.holder() == tokens[0], "handed over, since somebody listens"
    assert sorted(served(waiters)) == sorted(tokens)
    scene.is_free(after=held)


@through_both_ports
def test_cut_when_it_is_handed_over(scene: Scene) -> None:
    """The server finds nobody who listens; the waiter comes back for it by itself."""
    held = scene.acquire_direct()
    waiter = scene.start()
    scene.queued(1)
    eventually(scene.listening)
    scene.meet()
    scene.proxy.cut_subscribers()
    scene.release(held)
    scene.release_last(scene.got(waiter))


@through_both_ports
def test_cut_again_and_again(scene: Scene) -> None:
    """Whenever it happens, everybody gets the lock in the end, one at a time."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.03):
            scene.proxy.cut_subscribers()

    threading.Thread(target=cut, daemon=True).start()
    try:
        fencing_token = 0
        for _ in range(5):
            held = scene.acquire_direct()
            assert held.fencing_token > fencing_token
            waiters = [pass_through(scene) for _ in range(4)]
            eventually(scene.waiting)
            scene.release(held)
            leases = [waiter.result(PATIENCE) for waiter in waiters]
            fencing_tokens = sorted(lease.fencing_token for lease in leases)
            assert fencing_tokens[0] > held.fencing_token
            assert len(set(fencing_tokens)) == len(leases)
            fencing_token = fencing_tokens[-1]
    finally:
        over.set()
    scene.is_free()


def cut_and_wait(scene: Scene) -> None:
    """Cut all connections until the waiters have noticed it."""
    scene.meet()
    before = scene.proxy.connected
    scene.proxy.cut()
    eventually(lambda: scene.proxy.open == 0 and scene.proxy.connected > before + 3)


@through_both_ports
def test_cut_while_waiting(scene: Scene) -> None:
    """Nothing surfaces, and the places in the queue are kept."""
    held = scene.acquire_direct()
    waiters, tokens = line_up(scene, 4)
    cut_and_wait(scene)
    assert scene.waiting() == tokens
    assert not any(waiter.done() for waiter in waiters)
    scene.meet()
    scene.proxy.mend()
    seconds, microseconds = scene.redis.time()
    mended = seconds * 1_000_000 + microseconds
    eventually(lambda: all(seen > mended for seen in scene.seen().values()))
    assert scene.waiting() == tokens
    eventually(scene.listening)
    scene.release(held)
    assert sorted(served(waiters)) == sorted(tokens)
    scene.is_free(after=held)


@through_both_ports
def test_released_during_a_cut(scene: Scene) -> None:
    """Nobody could be told; when the network is back, all of them get it."""
    held = scene.acquire_direct()
    waiters, tokens = line_up(scene, 4)
    cut_and_wait(scene)
    scene.release(held)
    assert not any(waiter.done() for waiter in waiters)
    scene.meet()
    scene.proxy.mend()
    assert sorted(served(waiters)) == sorted(tokens)
    scene.is_free(after=held)
