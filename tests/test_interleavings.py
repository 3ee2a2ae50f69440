"""One mishap at a time, one command at a time: what the mutex owes when it happens.

Stories of many mishaps are in test_model.py. `schedules` runs a world in every order of its steps;
test_record.py does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_redislock.base.clock import deadline
from django_redislock.base.exceptions import LeaseLost, LockNotAcquired, LockUnavailable
from django_redislock.primitives import mutex
from django_redislock.primitives.contract import Claim, Refusal
from django_redislock.primitives.keys import Keys
from tests.memory import Actor, MemoryServer, Pause, SteppedIO

KEYS = Keys.of("redislock", "invoice:42")
TTL = 30.0


class World:
    """One server, some acquirers of one name, and what the test has seen of them."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.actors: list[Actor] = []
        self.grants: list[tuple[str, int]] = []
        self.inside: dict[str, float] = {}
        """Who is in the guarded section, and until when it may believe in its lease."""
        self.overlap = False

    def acquirer(self, name: str, wait: float | None) -> Actor:
        port = SteppedIO(self.server, inbox=f"inbox of {name}")
        claim = Claim(KEYS, token=name * 32, ttl=TTL, owner=name, label="here", primitive=mutex)
        actor = Actor(name, port, self._life(port, claim, wait))
        self.actors.append(actor)
        return actor

    async def _life(self, port: SteppedIO, claim: Claim, wait: float | None) -> str:
        """Acquire, work, release."""
        got = await mutex.acquire(port, claim, wait)
        if isinstance(got, LockNotAcquired):
            return "conflict"
        ends = deadline(got.sent, TTL)
        if port.now() < ends:
            self.overlap |= any(until > port.now() for until in self.inside.values())
            self.inside[claim.owner] = ends
        self.grants.append((claim.owner, got.fencing_token))
        await Pause("work")
        self.inside.pop(claim.owner, None)
        refusal = await mutex.release(port, claim)
        return "released" if refusal is None else str(refusal.error("invoice:42"))

    def lease_ends(self) -> None:
        """Time passes until whatever lease there is has ended."""
        self.server.time += TTL + 0.001

    def nothing_left(self) -> bool:
        name = self.server._name(KEYS.lock)
        return name.value is None and not name.queue and not name.waiters


def schedules(make: Callable[[], tuple[World, list[Callable[[], None]]]]) -> Iterator[World]:
    """Run a world in every order of its actors' steps and of some events, each once.

    When everybody sleeps, time goes on to the first who wakes.
    """
    pending: list[list[int]] = [[]]
    while pending:
        prefix = pending.pop()
        world, events = make()
        chosen: list[int] = []
        while True:
            options: list[Callable[[], None]] = [
                actor.step for actor in world.actors if not actor.done and actor.io.runnable()
            ]
            options += events
            if not options or all(actor.done for actor in world.actors):
                asleep = [actor.io.wake_at for actor in world.actors if not actor.done]
                if not asleep:
                    break
                world.server.time = min(time for time in asleep if time is not None)
                continue
            if len(chosen) < len(prefix):
                choice = prefix[len(chosen)]
            else:
                choice = 0
                pending += [[*chosen, other] for other in range(1, len(options))]
            chosen.append(choice)
            step = options[choice]
            step()
            if step in events:
                events.remove(step)
        yield world


def test_a_release_hands_over_and_nobody_barges_in() -> None:
    """The lock is the waiter's before it wakes up: a newcomer can't take it from under it."""
    world = World()
    holder, waiter = world.acquirer("a", 0), world.acquirer("b", None)
    for _ in range(3):
        holder.step()  # it works
    for _ in range(3):
        waiter.step()  # it sleeps in the queue
    assert not waiter.io.runnable()
    for _ in range(3):
        holder.step()  # it has released

    newcomer = world.acquirer("c", 0)
    while not newcomer.done:
        newcomer.step()

    assert newcomer.result == "conflict"
    assert waiter.io.runnable()
    while not waiter.done:
        waiter.step()
    assert [name for name, _ in world.grants] == ["a", "b"]


def test_a_killed_waiter_is_passed_over_at_once() -> None:
    """The next waiter gets the lock in the same step, without any time going by."""
    world = World()
    holder = world.acquirer("a", 0)
    dead, alive = world.acquirer("b", None), world.acquirer("c", None)
    for actor in (holder, dead, alive):
        for _ in range(3):
            actor.step()
    dead.kill()
    before = world.server.time
    while not holder.done:
        holder.step()
    while not alive.done:
        assert alive.io.runnable()
        alive.step()
    assert alive.result == "released"
    assert world.server.time == before


def test_a_stopped_waiter_costs_one_claim_window() -> None:
    """A waiter that was handed the lock and does not confirm it loses it after a second, and
    gets it after all when it comes back: its place is not lost."""
    world = World()
    holder = world.acquirer("a", 0)
    stopped, next_one = world.acquirer("b", None), world.acquirer("c", None)
    for actor in (holder, stopped, next_one):
        for _ in range(3):
            actor.step()
    while not holder.done:
        holder.step()
    released_at = world.server.time
    while not next_one.done:
        if not next_one.io.runnable():
            assert next_one.io.wake_at is not None
            world.server.time = next_one.io.wake_at
        next_one.step()
    assert next_one.result == "released"
    assert world.server.time - released_at < 2.0
    while not stopped.done:
        stopped.step()
    assert stopped.result == "released"
    assert [name for name, _ in world.grants] == ["a", "c", "b"]


class LossyIO(SteppedIO):
    """Answers and requests get lost, as the list says: "request", "answer" or "" (neither)."""

    def __init__(self, server: MemoryServer, losses: list[str]) -> None:
        super().__init__(server)
        self.losses = losses
        self.late: list[Callable[[], object]] = []
        """Requests that are still on their way."""

    async def script(self, name, keys, args):  # type: ignore[no-untyped-def]
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "request":
            self.late.append(lambda: self.server.call(name, keys, args))
            raise LockUnavailable("lost", doubtful=True)
        answer = await super().script(name, keys, args)
        if loss == "answer":
            raise LockUnavailable("lost", doubtful=True)
        return answer


def finish(world: World, actor: Actor) -> None:
    while not actor.done:
        if not actor.io.runnable():
            assert actor.io.wake_at is not None
            world.server.time = actor.io.wake_at
        actor.step()


def lossy(losses: list[str], wait: float | None = 0) -> tuple[World, Actor, LossyIO, Claim]:
    world = World()
    port = LossyIO(world.server, losses)
    claim = Claim(KEYS, token="a" * 32, ttl=TTL, owner="a", label="here", primitive=mutex)
    actor = Actor("a", port, world._life(port, claim, wait))
    world.actors.append(actor)
    return world, actor, port, claim


@pytest.mark.parametrize("loss", ["answer", "request"])
def test_a_lost_answer_of_acquire_is_asked_again(loss: str) -> None:
    """It is acquired, never "not acquired" while we hold it, and a late twin is refused."""
    world, actor, port, _ = lossy([loss])
    finish(world, actor)
    assert actor.result == "released"
    for arrive in port.late:
        arrive()
    assert world.nothing_left()


@pytest.mark.parametrize("loss", ["answer", "request"])
def test_a_lost_answer_of_release_is_asked_again(loss: str) -> None:
    """The release says released, although the second send finds nothing to release."""
    world, actor, port, _ = lossy(["", loss])
    finish(world, actor)
    assert actor.result == "released"
    for arrive in port.late:
        arrive()
    assert world.nothing_left()


def test_a_repeated_release_is_no_loss_after_others_have_held_the_lock() -> None:
    """Even when the tail remembers only their release."""
    world, actor, port, _ = lossy(["", "answer"])
    while port.losses:
        actor.step()
    actor.step()  # released on the server; the answer is lost on the next step
    other = world.acquirer("b", 0)
    finish(world, other)
    assert other.result == "released"
    finish(world, actor)
    assert actor.result == "released"


def test_an_acquire_that_arrives_after_its_withdrawal_is_refused() -> None:
    """No ghost: the tombstone turns away what was still on its way."""
    world, actor, port, claim = lossy(["request", "request"])
    with pytest.raises(LockUnavailable):
        finish(world, actor)
    assert claim.doubtful
    undo = Actor("a", port, mutex.release(port, claim))
    finish(world, undo)
    assert len(port.late) == 2
    for arrive in port.late:
        assert arrive()[0] == -1  # type: ignore[index]
    assert world.nothing_left()


def test_a_waiter_without_limit_outlasts_lost_answers() -> None:
    """Nothing surfaces that its wait could cover."""
    world, actor, port, _ = lossy(["answer", "request", "request", "answer", "request"], wait=None)
    finish(world, actor)
    assert actor.result == "released"
    for arrive in port.late:
        arrive()
    world.lease_ends()
    assert world.nothing_left()


def test_a_waiter_whose_lock_is_cleared_before_it_knows() -> None:
    """It was handed the lock and has not confirmed it: it waits on, and is told of nothing."""
    world = World()
    holder, waiter = world.acquirer("a", 0), world.acquirer("b", None)
    for actor in (holder, waiter):
        for _ in range(3):
            actor.step()
    while not holder.done:
        holder.step()
    world.server.call("mutex_clear", KEYS.mutex("b" * 32), ["b" * 32, KEYS.name, "eva", "stuck"])
    finish(world, waiter)
    assert waiter.result == "released"


def test_giving_up_notices_a_lock_that_was_granted_in_that_moment() -> None:
    """The last acquire of a waiter confirms what was handed to it since it woke up."""
    world = World()
    holder, waiter = world.acquirer("a", 0), world.acquirer("b", 0.5)
    for actor in (holder, waiter):
        for _ in range(3):
            actor.step()
    assert waiter.io.wake_at is not None
    world.server.time += 0.6
    waiter.step()  # its time is over: the last acquire is under way
    while not holder.done:
        holder.step()
    finish(world, waiter)
    assert waiter.result == "released"


def test_the_deadline_counts_from_the_sending() -> None:
    """An answer that took longer than the lease does not make a holder of anybody."""
    world = World()
    slow = world.acquirer("a", 0)
    slow.step()
    slow.step()  # carried out on the server; the answer is on its way
    world.lease_ends()
    other = world.acquirer("b", 0)
    for _ in range(3):
        other.step()
    slow.step()
    assert "a" not in world.inside
    assert "b" in world.inside


def test_the_error_says_who_holds_it_now() -> None:
    """A refusal is turned into the right kind of loss."""
    value = b"b" * 32 + b"|1|1|30000|web-2:7:MainThread|shop/views.py:3 in pay"
    assert "web-2:7:MainThread holds the lock now" in str(Refusal(value, None).error("invoice:42"))
    assert "another program" in str(Refusal(b"something", None).error("invoice:42"))
    assert "ttl passed" in str(Refusal(None, None).error("invoice:42"))
    assert type(Refusal(None, b"withdrawn").error("invoice:42")) is LeaseLost
