"""A `Leader` when processes are killed, stopped, forked and ended, and when Redis is away."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import pytest
from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock.leader import Leader
from tests.processes import Start
from tests.test_leader import LOCK, Team, team, waiting
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

PROGRAMS = "tests.faults.test_leader"

__all__ = ["team"]  # a fixture


def test_redis_is_away(team: Team, own_server: RedisServer) -> None:
    """It waits for Redis, too. If Redis goes away, it leads until its own deadline."""
    own_server.stop()
    leader = team.member("a", ttl=1)
    own_server.start()
    eventually(lambda: team.said == ["gain a"])
    own_server.stop()
    eventually(lambda: team.said == ["gain a", "loss a"])
    assert not leader.is_leader
    own_server.start()
    eventually(lambda: team.said == ["gain a", "loss a", "gain a"])


class TestProcesses:
    def test_killed(self, start: Start, redis: Redis) -> None:
        """Another one leads after its ttl."""
        first = start(f"{PROGRAMS}:lead", "1")
        assert first.says() == "gain"
        second = start(f"{PROGRAMS}:lead", "1")
        waiting(redis, 1)
        first.kill()
        assert second.says() == "gain"

    def test_stopped_for_longer_than_its_lease(self, start: Start, redis: Redis) -> None:
        """Its own deadline has passed when it goes on: it does not lead, whatever Redis says."""
        first = start(f"{PROGRAMS}:lead", "1", "says")
        assert first.says() == "gain"
        first.stop()
        second = start(f"{PROGRAMS}:lead", "1")
        assert second.says() == "gain"
        first.signal(signal.SIGCONT)
        first.go_on()
        assert sorted(first.lines(2)) == ["False", "loss"]
        second.kill()
        assert first.says() == "gain"

    @pytest.mark.parametrize("how", ["ends", "raises", "sys.exit", "SIGTERM"])
    def test_the_end_of_the_interpreter(self, start: Start, redis: Redis, how: str) -> None:
        """It ends its work and releases the lock."""
        worker = start(f"{PROGRAMS}:lead", "30", how)
        assert worker.says() == "gain"
        worker.signal(signal.SIGTERM) if how == "SIGTERM" else worker.go_on()
        assert worker.says() == "loss"
        assert worker.ends() == {"ends": 0, "raises": 1, "sys.exit": 3, "SIGTERM": 4}[how]
        assert not redis.exists(LOCK)

    def test_the_end_of_one_that_waits(self, start: Start, redis: Redis) -> None:
        """It does not hold up the process, and is passed over."""
        first = start(f"{PROGRAMS}:lead", "30", "ends")
        assert first.says() == "gain"
        second = start(f"{PROGRAMS}:lead", "30", "ends")
        waiting(redis, 1)
        second.go_on()
        assert second.ends() == 0

    def test_a_fork_of_one_that_leads(self, start: Start) -> None:
        """The child does not lead, and does not take part; the parent leads on."""
        worker = start(f"{PROGRAMS}:fork", "True")
        assert worker.lines(3) == ["gain", "child False False", "parent True"]

    def test_a_fork_of_a_loop(self, start: Start) -> None:
        """As of a thread."""
        worker = start(f"{PROGRAMS}:fork_of_a_loop")
        assert worker.lines(2) == ["child False", "parent True"]

    def test_a_fork_of_one_that_does_not_serve(self, start: Start) -> None:
        """A master that loads the application before it forks: its worker leads."""
        worker = start(f"{PROGRAMS}:fork", "False")
        assert worker.lines(3) == ["gain", "child True True", "parent False"]


# What the processes run.


def lead(ttl: str, how: str = "") -> None:
    """Lead, and say so, until told to end."""
    leader = Leader(
        "scheduler",
        ttl=float(ttl),
        on_gain=lambda: say("gain"),
        on_loss=lambda: say("loss"),
        serves=lambda: True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    leader.start()
    told()
    if how == "says":
        say(leader.is_leader)
        told()
    if how == "raises":
        raise ValueError
    if how == "sys.exit":
        sys.exit(3)


def fork(serving: str) -> None:
    """Fork after start(): by a process that serves, or by one that does not."""
    parent, gained = os.getpid(), threading.Event()

    def gain() -> None:
        say("gain")
        gained.set()

    def serve() -> bool:
        return serving == "True" or os.getpid() != parent

    leader = Leader("scheduler", on_gain=gain, serves=serve)
    leader.start()
    if serving == "True":
        gained.wait(PATIENCE)
    if (child := os.fork()) == 0:
        if serving == "False":
            gained.wait(PATIENCE)
        say("child", leader.is_leader, leader._part is not None)
        os._exit(0)
    os.waitpid(child, 0)
    say("parent", leader.is_leader)


def fork_of_a_loop() -> None:
    """Fork in a loop that leads."""

    async def main() -> None:
        async with Leader("scheduler") as leader:
            while not leader.is_leader:
                await asyncio.sleep(0.002)
            if (child := os.fork()) == 0:
                say("child", leader.is_leader)
                os._exit(0)
            await asyncio.to_thread(os.waitpid, child, 0)
            say("parent", leader.is_leader)

    asyncio.run(main())
