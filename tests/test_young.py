"""Leases of which nobody has taken notice: what others do to them at the same moment."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from django_redislock import (
    Lease,
    LeaseLost,
    LeaseState,
    LockReentered,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    current_lease,
    once,
    redis_lock,
)
from django_redislock.base.exceptions import LockUnavailable
from django_redislock.lease import claims
from django_redislock.lease.register import Register, held_by, register
from django_redislock.lease.watchdog import watchdog
from django_redislock.transport.ports import AsyncPort, SyncPort
from django_redislock.transport.server import server_of
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually

WAITERS = "redislock:{job}:waiters"
LOCKS: dict[str, Callable[[str], Any]] = {
    "mutex": redis_lock,
    "several": lambda name: MultiLock([name, "other"]),
    "semaphore": lambda name: Semaphore(name, 2),
    "reader": lambda name: ReadWriteLock(name).read(),
    "writer": lambda name: ReadWriteLock(name).write(),
    "once": once,
}
every_lock = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


@pytest.fixture
def watched(redis: Redis) -> Iterator[Register]:
    """The register, in a process that has a line to a server that knows all scripts."""
    for make in LOCKS.values():
        with make("warm up"):
            pass
    server = server_of("default")
    server.busy.clear()  # of the test before
    found = register(server)
    yield found
    assert not found.young
    assert not found.leases()
    assert not redis.keys("redislock:{*}")
    for record in redis.keys("redislock:*:record"):
        redis.delete(record)


def is_young(watched: Register, name: str = "job") -> bool:
    return f"redislock:{{{name}}}" in watched.young


@every_lock
def test_it_is_left_as_it_was_entered(make: Any, watched: Register, redis: Redis) -> None:
    """Nothing was made for it that a short block does not need."""
    completed: list[object] = []
    real = Lease._complete
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "_complete", lambda its: completed.append(its) or real(its))
        with make("job"):
            assert watched.young
            assert redis.keys("redislock:{*}")
    assert completed == []


@every_lock
def test_the_watchdog_takes_notice(make: Any, watched: Register) -> None:
    """Within a second or two. Then it is renewed and written down as any other."""
    with make("job"):
        eventually(lambda: not watched.young)
        (lease,) = watched.leases()
        assert lease.state == LeaseState.HELD


@pytest.mark.parametrize("by", ["a thread", "a message"])
def test_one_that_was_handed_over(
    by: str,
    watched: Register,
    redis: Redis,
    start: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is young as well. Its release is one request, which hands the lock on."""
    scripts: list[str] = []
    real = SyncPort.script

    def script(its: SyncPort, name: str, *rest: Any) -> Any:
        scripts.append(name)
        return real(its, name, *rest)

    def block() -> tuple[bool, bool]:
        with redis_lock("job", wait=PATIENCE) as lease:
            lease.check()
            seen = is_young(watched), lease._grant.lives is None
            scripts.clear()
        assert lease.state == LeaseState.RELEASED
        return seen

    def hand_over() -> tuple[bool, bool]:
        worker = start("hold", "30") if by == "a message" else None
        held = redis_lock("job").acquire() if worker is None else worker.holds()
        with ThreadPoolExecutor(1) as threads:
            waiter = threads.submit(block)
            eventually(lambda: any(b"|redislock" in its for its in redis.hvals(WAITERS)))
            if worker is not None:
                worker.go_on()
            else:
                held.release()
            return waiter.result(PATIENCE)

    monkeypatch.setattr(SyncPort, "script", script)
    # On a busy machine the message may be late, and the waiter asks.
    eventually(lambda: hand_over() == (True, by == "a thread"))
    assert scripts == ["mutex_release"]
    assert not redis.exists("redislock:{job}")


def test_a_handed_one_lives_for_as_long_as_it_was_told(watched: Register) -> None:
    """Not for its ttl, until it is renewed."""
    with pytest.raises(LeaseLost), redis_lock("job", ttl=60) as lease:
        assert is_young(watched)
        lease._grant = lease._grant._replace(sent=lease._grant.sent - 5, lives=4.0)
        lease.check()
        pytest.fail("it is over")


def test_a_release_without_an_answer(
    watched: Register, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for a young lease counts as the first answer to the usual way."""
    asked: list[threading.Thread] = []

    async def script(*_: Any) -> Any:
        asked.append(threading.current_thread())
        raise LockUnavailable("no answer", "job", doubtful=True, silent=True)

    lock = redis_lock("job")
    lease = lock.__enter__()
    lease._claim.short = False  # as one that was handed over
    with monkeypatch.context() as patch:
        patch.setattr(SyncPort, "script", script)
        lock.__exit__(None, None, None)
        assert asked.count(threading.current_thread()) == 1  # the watchdog may have begun, too
    eventually(lambda: not redis.exists("redislock:{job}"))


LOOKS: dict[str, Callable[[Lease], object]] = {
    "state": lambda lease: lease.state == LeaseState.HELD,
    "remaining": lambda lease: lease.remaining() > 20,
    "extend": lambda lease: lease.extend(60) or lease.remaining() > 50,
    "repr": repr,
    "on_lost": lambda lease: lease.on_lost(print) or True,
    "held_by": lambda lease: held_by(threading.current_thread()) == [lease],
    "current_lease": lambda lease: current_lease() is lease,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_somebody_looks(look: Callable[[Lease], object], watched: Register) -> None:
    """Whoever asks it for more, finds it as it would be without haste."""
    with redis_lock("job") as lease:
        assert is_young(watched)
        lease.check()
        assert is_young(watched)
        assert look(lease)
    assert lease.state == LeaseState.RELEASED


@pytest.mark.parametrize(
    "options", [{"ttl": 3.9}, {"ttl": 3.9, "renew": False}, {"on_lost": print}], ids=str
)
def test_a_lease_that_is_whole_at_once(options: Any, watched: Register) -> None:
    """It is too short to wait for the watchdog's look, or somebody asked to hear of its loss."""
    with redis_lock("job", **options) as lease:
        assert not is_young(watched)
        assert watched.leases() == [lease]


def test_it_is_refused_to_its_own_thread(watched: Register) -> None:
    """The thread would wait for itself, whichever kind of lock asks."""
    with redis_lock("job"):
        for lock in (redis_lock("job"), MultiLock(["a", "job"])):
            with pytest.raises(LockReentered):
                lock.acquire()
    with MultiLock(["a", "job"]), pytest.raises(LockReentered):
        redis_lock("job").acquire()


def test_it_is_taken_again(watched: Register) -> None:
    """By the same thread, inside of its block; the outermost block releases it."""
    lock = redis_lock("job", reentrant=True)
    with lock as outer:
        with lock as inner:
            assert inner is outer
        assert outer.state == LeaseState.HELD
    assert outer.state == LeaseState.RELEASED


def test_two_of_one_lock_at_once(watched: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither thread has seen that the other one takes a permit, too. Both are watched."""
    monkeypatch.setattr(Register, "knows", lambda *_: False)
    inside, leave = threading.Barrier(3), threading.Event()

    def work() -> None:
        with Semaphore("job", 2):
            inside.wait(PATIENCE)
            leave.wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work) for _ in range(2)]
        inside.wait(PATIENCE)
        assert len(watched.leases()) == 2
        leave.set()
        for one in working:
            one.result(PATIENCE)


def test_the_server_has_forgotten_the_first(
    watched: Register, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So another thread takes the lock, at the moment at which the first lease is still young.
    The second one is watched at once."""
    monkeypatch.setattr(Register, "knows", lambda *_: False)

    def second() -> None:
        with redis_lock("job") as lease:
            assert watched.lifetimes[lease.token].lease() is lease

    with pytest.raises(LeaseLost), redis_lock("job"):
        redis.delete("redislock:{job}")
        with ThreadPoolExecutor(1) as threads:
            threads.submit(second).result(PATIENCE)


def test_what_an_exception_has_left_there(watched: Register) -> None:
    """It came before all names were struck out. The next look does that, once."""
    with MultiLock(["job", "other"]) as lease:
        name = "redislock:{other}"
        young = watched.young[name]
    watched.young[name] = young
    its = watchdog(server_of("default"))
    its.wake()
    eventually(lambda: not watched.young)
    assert not watched.leases()
    assert lease.state == LeaseState.RELEASED


class Meanwhile(dict[str, Any]):
    """Another thread does something before a lease is taken out."""

    def __init__(self, content: dict[str, Any], job: Callable[[], object]) -> None:
        super().__init__(content)
        self.job: Callable[[], object] | None = job

    def pop(self, key: str, *default: Any) -> Any:
        job, self.job = self.job, None
        if job is not None:
            with ThreadPoolExecutor(1) as threads:
                threads.submit(job).result(PATIENCE)
        return super().pop(key, *default)


def test_the_next_one_is_here_already(
    watched: Register, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog and the block take notice of a lease at once; the one that comes later meets
    the next lease of the lock, which stays young."""
    following: list[Lease] = []

    def next_one() -> None:
        """The other one is faster, and the lock is free and taken again."""
        assert watched.remove_young(lease._claim)
        redis.delete("redislock:{job}")
        following.append(redis_lock("job").__enter__())

    with pytest.raises(LeaseLost), redis_lock("job") as lease:
        monkeypatch.setattr(watched, "young", Meanwhile(watched.young, next_one))
        assert not watched.remove_young(lease._claim)
        assert is_young(watched)
        assert watched.young["redislock:{job}"] is following[0]
    following[0].release()


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, TimeoutError, OSError, ValueError])
def test_somebody_looks_while_it_is_released(
    error: type[BaseException] | None, watched: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog does not renew what is being released, even if that is interrupted."""
    real, seen = claims.release_straight, []

    def release_straight(server: Any, claim: Any) -> SyncPort | None:
        lease._complete()
        seen.append(watched.leases())
        done = real(server, claim)
        if error is not None:
            raise error
        return done

    lock = redis_lock("job")
    with monkeypatch.context() as patch:
        patch.setattr(claims, "release_straight", release_straight)
        if error is None:
            with lock as lease:
                pass
        else:
            with pytest.raises(error), lock as lease:
                pass
    assert seen == [[]]
    assert lease.state == LeaseState.RELEASED
    eventually(lambda: not watched.leases())


async def test_a_task_that_is_cancelled_while_it_releases(
    watched: Register, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free when the cancellation comes out."""
    real = AsyncPort.script

    async def script(self: AsyncPort, name: str, *more: Any) -> Any:
        if name == "mutex_drop":
            task.cancel()
            await asyncio.sleep(PATIENCE)
        return await real(self, name, *more)

    async def work() -> None:
        async with redis_lock("job") as lease:
            leases.append(lease)

    leases: list[Lease] = []
    monkeypatch.setattr(AsyncPort, "script", script)
    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leases[0].state == LeaseState.RELEASED
    assert not redis.exists("redislock:{job}")


def test_two_aliases_of_one_server(watched: Register, settings: Any) -> None:
    """They share what is kept for the server, and each lease says which one it came by."""
    settings.CACHES = {**settings.CACHES, "other": settings.CACHES["default"]}
    for alias in ("default", "other"):
        with redis_lock("job", using=alias) as lease:
            assert is_young(watched)
            assert lease.using == alias


def test_a_lock_of_a_tenant(watched: Register, settings: Any) -> None:
    """Its scope is in its keys, and else it is as any other."""
    settings.REDISLOCK = {"SCOPE": "tests.test_young.tenant"}
    with redis_lock("job") as lease:
        assert is_young(watched, "acme/job")
        assert lease.fencing_tokens == {"job": lease.fencing_token}


def tenant() -> str:
    return "acme"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_does_not_hold_it(watched: Register, redis: Redis) -> None:
    """It is its parent's, who holds it after the child has left its copy of the block."""
    with redis_lock("job") as lease:
        assert is_young(watched)
        if (child := os.fork()) == 0:
            try:
                lease.check()
            except LeaseLost:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.check()
        assert redis.exists("redislock:{job}")
