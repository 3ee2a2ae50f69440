"""Every order in which two who would do a thing once, and an expiry, can meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_redislock.base.exceptions import LockNotAcquired
from django_redislock.primitives import mutex, record
from django_redislock.primitives.contract import Claim
from django_redislock.primitives.keys import Keys
from tests.memory import Actor, MemoryServer, Pause, SteppedIO

KEYS = Keys.of("redislock", "once:job")
TTL = 30.0


class World:
    """One server, and those who use it."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.actors: list[Actor] = []

    def lease_ends(self) -> None:
        self.server.time += TTL + 0.001


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


class Doer(Actor):
    """Steps from command to command: between one and its answer nothing else of ours happens."""

    def step(self) -> None:
        super().step()
        while self.at.startswith("answer"):
            super().step()


def once(world: World, name: str, wait: float | None) -> None:
    """Do it, unless somebody has."""
    port = SteppedIO(world.server, inbox=f"inbox:{name}")
    claim = Claim(KEYS, token=name * 32, ttl=TTL, owner=name, label="here", primitive=mutex)

    async def life() -> str:
        if isinstance(await mutex.acquire(port, claim, wait), LockNotAcquired):
            return "skipped"
        if await record.read(port, KEYS) is not None:
            await mutex.release(port, claim)
            return "found"
        await Pause("work")
        refusal = await record.write(port, claim, name.encode(), None)
        await mutex.release(port, claim)
        return "done" if refusal is None else "lost"

    world.actors.append(Doer(name, port, life()))


@pytest.mark.parametrize("waits", [(0, 0), (0, None), (None, None)], ids=str)
@pytest.mark.parametrize("expires", [False, True], ids=["in time", "one expires"])
def test_two_in_every_order(waits: tuple[float | None, float | None], expires: bool) -> None:
    """It is done by one at most, whose record stands; and by one for sure, if no lease is lost."""

    def make() -> tuple[World, list[Callable[[], None]]]:
        world = World()
        for name, wait in zip("ab", waits, strict=True):
            once(world, name, wait)
        return world, [world.lease_ends] if expires else []

    stories: set[tuple[str, ...]] = set()
    for world in schedules(make):
        results = [actor.result for actor in world.actors]
        stories.add(tuple(sorted(results)))
        doers = [actor.name for actor in world.actors if actor.result == "done"]
        kept = world.server.at(KEYS.record)
        assert doers == ([] if kept is None else [kept])
        assert doers or "lost" in results
        assert "found" not in results or doers
    assert ("done", "found") in stories
    assert (("done", "skipped") in stories) == (0 in waits)
    assert (("done", "lost") in stories) == expires
