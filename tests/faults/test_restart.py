"""Redis goes away under five hundred waiters, and comes back with its data or without."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis

from devtools.redis_server import RedisServer, find_server
from django_redislock import LeaseLost, LeaseState, LockUnavailable, redis_lock
from django_redislock.primitives import mutex
from django_redislock.primitives.contract import Claim
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.waiting import DEAF
from tests.caches import caches
from tests.memory import Actor, MemoryServer, SteppedIO
from tests.processes import Worker
from tests.waiting import PATIENCE, eventually
from tests.worker import say, told

PROCESSES = 5
WAITERS = 500

SOON = 2.0
"""Seconds after its return, or after the release, within which somebody is served."""
CONNECTIONS = 100
"""So many may be opened in the first second after its return, by all processes."""
REQUESTS = 500
"""So many a second may come from all who wait."""
FEW = WAITERS // 100
"""So many may be served after somebody who came later. A waiter that is kept from the processor
for longer than the claim window is passed over, which is no fault on a machine that is busy
otherwise. In a random order it is half of them."""

KEYS = Keys.of("redislock", "invoice:42")


def steady_port() -> int:
    """A free port that the kernel gives to nobody who connects.

    From its own range it may give a client the very port that the client asks for while no
    server listens there: that client is connected to itself, and the server is locked out.
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Harmed:
    """A server that goes away. Its data are in a directory that survives it, or not."""

    def __init__(self, data: Path) -> None:
        self._data = data
        data.mkdir()
        self._server = RedisServer(
            args=["--appendonly", "yes", "--dir", str(data)], tcp_port=steady_port()
        )
        self._server.start()
        self.url = f"redis://127.0.0.1:{self._server.tcp_port}/0"
        self.client = Redis.from_url(self._server.url)
        self._before = 0

    def go(self, outage: str) -> None:
        if outage == "stalled":
            self._before = self._info("total_connections_received")
            self._server.pause()
        else:
            self._server.stop()

    def come_back(self, outage: str) -> None:
        if outage == "stalled":
            self._server.resume()
            return
        if outage == "empty":
            shutil.rmtree(self._data)
            self._data.mkdir()
        self._server.start()
        # While it was loading its data, it sent everybody away who came.
        self._before = self._info("total_connections_received") - self._info("connected_clients")

    def _info(self, field: str) -> int:
        return int(self.client.info()[field])

    def accepted(self) -> int:
        """How many connections it has accepted since it was away; one or two are ours."""
        return self._info("total_connections_received") - self._before

    def asked(self) -> int:
        """How many scripts it has run."""
        calls = self.client.info("commandstats")
        return sum(int(calls[f"cmdstat_{name}"]["calls"]) for name in ("eval", "evalsha"))

    def queue(self, name: str) -> list[str]:
        """The waiting tokens in order of arrival."""
        queue = self.client.zrange(f"redislock:{{{name}}}:queue", 0, -1)
        return [token.decode() for token in queue]

    def seen(self, name: str, since: int) -> int:
        """How many waiters have given a sign of life since a time of its clock."""
        waiters = self.client.hvals(f"redislock:{{{name}}}:waiters")
        return sum(int(waiter.split(b"|")[0]) >= since for waiter in waiters)

    def time(self) -> int:
        """Its clock in microseconds."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def close(self) -> None:
        self.client.close()
        self._server.stop()


class Section(NamedTuple):
    """What one waiter wrote down, on the clock that all processes share."""

    fencing_token: int
    token: str
    begin: float
    end: float


class Crowd:
    """Waiters in several processes."""

    def __init__(self, program: str, url: str, directory: Path) -> None:
        self._journal = directory / "journal"
        self._journal.touch()
        self.door = directory / "door"
        """While it exists, nobody leaves a section."""
        self._workers = [
            Worker(
                f"tests.faults.test_restart:{program}",
                str(self._journal),
                str(self.door),
                url=url,
            )
            for _ in range(PROCESSES)
        ]
        for worker in self._workers:
            assert worker.says() == "ready"

    def begin(self, name: str) -> None:
        """All of them wait for the lock, and enter its section once."""
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.write(f"{name} {WAITERS // PROCESSES}\n")
            worker.process.stdin.flush()

    def served(self, name: str) -> list[Section]:
        """Wait for all of them. Their sections, in the order of their fencing tokens."""
        for worker in self._workers:
            while (line := worker.says()) != f"done {name}":
                assert line, "a worker has ended"  # else it is of a test that has failed
        sections = []
        for line in self._journal.read_text().splitlines():
            of, token, rest = line.split(maxsplit=2)
            if of == name:
                assert token != "error", rest
                fencing_token, begin, end = rest.split()
                sections.append(Section(int(fencing_token), token, float(begin), float(end)))
        return sorted(sections)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harmed]:
    if find_server().url is not None:
        pytest.skip("needs a server of its own to harm")
    harmed = Harmed(tmp_path_factory.mktemp("redis") / "data")
    yield harmed
    harmed.close()


@pytest.fixture(scope="module")
def crowds(
    harmed: Harmed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Crowd]]:
    """The crowd of a program in this file; it is there for all tests."""
    there: dict[str, Crowd] = {}

    def crowd(program: str) -> Crowd:
        if program not in there:
            there[program] = Crowd(program, harmed.url, tmp_path_factory.mktemp(program))
        return there[program]

    yield crowd
    for crowd_ in there.values():
        crowd_.close()


def in_line(crowd: Crowd, harmed: Harmed, name: str) -> list[str]:
    """All of them wait. Their tokens in order of arrival."""
    crowd.begin(name)
    eventually(lambda: len(harmed.queue(name)) == WAITERS)
    return harmed.queue(name)


def check(sections: list[Section], arrival: list[str]) -> None:
    """Everybody was served, one at a time, and those whose order counts in that order."""
    assert len({section.fencing_token for section in sections}) == WAITERS
    for before, after in pairwise(sections):
        assert before.end <= after.begin
    places = [arrival.index(section.token) for section in sections if section.token in arrival]
    assert sum(second < first for first, second in pairwise(places)) <= FEW


def test_waiting_costs_little(
    crowds: Callable[[str], Crowd], harmed: Harmed, settings: Any
) -> None:
    """Five hundred who wait send less than five hundred requests a second."""
    settings.CACHES = caches(harmed.url)
    crowd = crowds("threads")
    with redis_lock("idle"):
        arrival = in_line(crowd, harmed, "idle")
        asked, began = harmed.asked(), time.monotonic()
        time.sleep(2)
        rate = (harmed.asked() - asked) / (time.monotonic() - began)
    check(crowd.served("idle"), arrival)
    assert 0 < rate <= REQUESTS


@pytest.mark.parametrize(
    ("program", "outage", "ttl", "away", "told"),
    [
        # Restarted without its data, and with them; stopped as by a debugger; and away for
        # longer than the lease.
        ("threads", "empty", 12, 1.5, "lost"),
        ("threads", "kept", 12, 1.5, "held"),
        ("threads", "stalled", 12, 3, "held"),
        ("threads", "kept", 2, 3, "lost"),
        ("tasks", "empty", 2, 3, "lost"),
    ],
)
def test_an_outage(
    crowds: Callable[[str], Crowd],
    harmed: Harmed,
    settings: Any,
    program: str,
    outage: str,
    ttl: float,
    away: float,
    told: str,
) -> None:
    """All who waited are served when Redis is back, soon, and in the order in which they came but
    for the one who was back first; they don't fall upon it; the holder is told the truth."""
    settings.CACHES = caches(harmed.url)
    crowd, name = crowds(program), f"{program}-{outage}-{ttl}"
    lease = redis_lock(name, ttl=ttl).acquire()
    assert lease is not None
    arrival = in_line(crowd, harmed, name)

    crowd.door.touch()  # who gets in stays inside until the others are back
    try:
        began = time.monotonic()
        harmed.go(outage)
        if outage != "stalled":
            with pytest.raises(LockUnavailable):
                lease.extend()
            assert lease.state == LeaseState.UNKNOWN
        if ttl < away:
            eventually(lambda: lease.state == LeaseState.LOST)
        time.sleep(max(0.0, began + away - time.monotonic()))

        back = time.monotonic()
        ends = back + lease.remaining()
        harmed.come_back(outage)
        since = harmed.time()
        time.sleep(max(0.0, back + 1 - time.monotonic()))
        assert harmed.accepted() <= CONNECTIONS
        eventually(lambda: lease.state == told)
        assert ttl < away or time.monotonic() < ends, "told, and not only run out by its own clock"
        others = WAITERS if told == "held" else WAITERS - 1
        eventually(lambda: harmed.seen(name, since) == others)
        if told == "held":
            back = time.monotonic()
            lease.release()
        else:
            with pytest.raises(LeaseLost):
                lease.release()
    finally:
        crowd.door.unlink()

    sections = crowd.served(name)
    assert sections[0].begin < back + SOON
    if told == "lost":
        arrival.remove(sections[0].token)
    check(sections, arrival)
    keys = (f"redislock:{{{name}}}{rest}" for rest in ("", ":queue", ":waiters"))
    assert not harmed.client.exists(*keys)


def test_who_comes_back_asks_once() -> None:
    """A waiter that was cut off says where it listens in the first request that arrives."""
    server = MemoryServer()
    port = Cut(server)
    holder, waiter = (
        Actor(name, port, mutex.acquire(port, claim(name), wait))
        for name, wait in (("holder", 0), ("waiter", None))
    )
    while not holder.done:
        holder.step()
    while waiter.at != "wait":
        waiter.step()

    port.deaf = True
    waiter.step()
    assert port.inbox_said() == DEAF
    waiter.throw(LockUnavailable("away", KEYS.name))
    port.deaf = False
    waiter.step()
    assert port.inbox_said() == port.inbox


def claim(name: str) -> Claim:
    return Claim(KEYS, token=name[0] * 32, ttl=30, owner=name, label="here", primitive=mutex)


class Cut(SteppedIO):
    """A port of a process that may not hear its messages."""

    deaf = False

    async def listen(self, token: str, *, within: float, keys: Sequence[Keys]) -> str:
        return DEAF if self.deaf else await super().listen(token, within=within, keys=keys)

    def inbox_said(self) -> str:
        """Return the inbox that the present request says."""
        assert isinstance(self.request, partial)
        _, _, args = self.request.args
        return str(args[3])


# What the processes run.


def threads(journal: str, door: str) -> None:
    """For each "name count" that it is told, so many threads wait for that lock."""
    note = _notes(journal)

    def enter(name: str) -> None:
        try:
            with redis_lock(name, wait=4 * PATIENCE) as lease:
                begin = time.monotonic()
                while _closed(door):
                    time.sleep(0.005)
                note(name, lease.token, lease.fencing_token, begin, time.monotonic())
        except Exception as error:
            note(name, "error", repr(error))

    def crowd(name: str, count: int) -> None:
        waiters = [threading.Thread(target=enter, args=(name,)) for _ in range(count)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()

    _serve(crowd)


def tasks(journal: str, door: str) -> None:
    """The same with asyncio tasks on one event loop."""
    note = _notes(journal)

    async def enter(name: str) -> None:
        try:
            async with redis_lock(name, wait=4 * PATIENCE) as lease:
                begin = time.monotonic()
                while _closed(door):
                    await asyncio.sleep(0.005)
                note(name, lease.token, lease.fencing_token, begin, time.monotonic())
        except Exception as error:
            note(name, "error", repr(error))

    async def crowd(name: str, count: int) -> None:
        await asyncio.gather(*(enter(name) for _ in range(count)))

    _serve(lambda name, count: asyncio.run(crowd(name, count)))


def _serve(crowd: Callable[[str, int], object]) -> None:
    say("ready")
    while line := told():
        name, count = line.split()
        crowd(name, int(count))
        say("done", name)


def _closed(door: str) -> bool:
    return os.path.exists(door)


def _notes(journal: str) -> Callable[..., object]:
    """Write a line to the journal, which all processes share: one write, so that none is torn."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND)
    return lambda *words: os.write(descriptor, f"{' '.join(map(str, words))}\n".encode())
