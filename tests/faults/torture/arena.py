"""Starts the workers, kills and stops them, replaces the dead, and looks at what is left."""

from __future__ import annotations

import heapq
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from redis import Redis

from django_redislock.base.clock import now
from tests.faults.proxy import Fault, Proxy, Rule
from tests.peers.adapters import Ours, Peer
from tests.peers.forkserver import CONTEXT
from tests.waiting import PATIENCE

from .checker import Verdict, check
from .history import Event, History, Journal, Reader, Terms, read
from .register import RegisterServer
from .site import SITES, Site
from .worker import NAME, Task, take_once, work

CLOCK = b"redislock:clock"
"""The last fencing token, which is to stay."""
INDEX = b"redislock:index"
"""It forgets a lease that has ended by itself when others are written down a minute later."""
MISSED = b"redislock:missed_wakeups"
"""How many handovers no message announced: a process that is stopped may read one too late."""
GUARD = b"redislock:guard"
"""Since when nothing was lost, if locks wait after a loss."""

FORGETS = ("old_file", "failover", "promotion")
"""After these, a server may have a lock that was released."""


@dataclass(frozen=True)
class Plan:
    peer: type[Peer] = Ours
    processes: int = 8
    seconds: float = 30.0
    lease: float = 0.2
    kills: float = 0.05
    """The share of rounds in which the process is killed; half of them while it waits."""
    stops: float = 0.05
    """The share of rounds in which it is stopped, for between 1/4 and 5/2 of the lease."""
    lost: float = 0.0
    """The share of replies that are lost: half of them with a reset, half of them in silence."""
    outage: str = ""
    """What is done to the servers: the name of a method of a site (site.py)."""
    every: float = 0.6
    """Seconds between two outages, on average."""
    doubles: bool = False
    """Whether two may hold the lock at a time."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`REDISLOCK` of the processes."""
    late: float = 0.0
    """Seconds by which messages to waiters come later, at most."""
    section: tuple[float, float] = (0.005, 0.025)
    long: float = 0.03
    """The share of sections that need renewals, if there are faults."""
    waits: tuple[int, int, int] = (8, 1, 1)
    """How often they wait for as long as it takes, try once, and give up soon."""
    seed: int = 1

    @property
    def ttl(self) -> float:
        return max(self.lease, self.peer.shortest)

    @property
    def terms(self) -> Terms:
        lossy = bool(self.lost or self.outage or self.peer.servers > 1)
        forgets = self.outage in FORGETS
        return Terms(
            self.ttl, self.peer.places, lossy=lossy, doubles=self.doubles, forgets=forgets
        )

    @property
    def faults(self) -> bool:
        return bool(self.kills or self.stops or self.terms.lossy)


def torture(plan: Plan) -> History:
    """Let them hammer one lock, and return what they saw."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as started:
        path = Path(directory) / "journal"
        make = SITES.get(plan.outage, Site)
        site = make(Path(directory), plan.peer.servers, plan.seed, plan.outage)
        started.enter_context(site)
        url, rules = site.url, []
        with ExitStack() as between:
            if plan.lost or plan.late:
                proxies = [
                    between.enter_context(Proxy(server, seed=plan.seed))
                    for server in site.primaries
                ]
                rules = [rule for proxy in proxies for rule in _lose(proxy, plan.lost)]
                for proxy in proxies:
                    proxy.late = (0.0, plan.late)
                url = " ".join(proxy.url for proxy in proxies)
            _Arena(plan, path, url, site).run()
        _look(plan, path, site)
        history = read(path)
        history.counts["lose"] = sum(rule.count for rule in rules)
        return history


def judge(plan: Plan, history: History) -> Verdict:
    return check(history, plan.terms, processes=plan.processes, fair=not plan.faults)


HANDSHAKE = {b"HELLO", b"CLIENT", b"AUTH", b"SELECT", b"PING", b"SUBSCRIBE", b"UNSUBSCRIBE"}


def _lose(proxy: Proxy, share: float) -> list[Rule]:
    """Lose replies of commands; what a connection begins with is left alone."""

    def counts(words: list[bytes]) -> bool:
        return words[0].upper() not in HANDSHAKE

    return [
        proxy.on(counts, fault, times=10**9, chance=share / 2)
        for fault in (Fault.RESET_AFTER, Fault.LOSE_REPLY)
    ]


def _look(plan: Plan, path: Path, site: Site) -> None:
    """Write down which keys are there although no process is left and each lease has ended."""
    journal = Journal(path, "arena")
    time.sleep(plan.terms.orphan)
    lock = plan.peer.key(NAME)
    servers = site.look()
    left = []
    for server in servers:
        with Redis.from_url(server.url) as redis:
            # Not by EXISTS: a node of a cluster that has not the slot refuses it.
            there = {key.decode() for key in redis.keys("*")}
            left += there.intersection((lock, *plan.peer.transient(NAME)))
    # What keeps account of a lease that ended without a release is put right by the next one.
    process = CONTEXT.Process(
        target=take_once,
        args=(plan.peer, site.url, plan.ttl, plan.settings, path.parent),
        daemon=True,
    )
    process.start()
    process.join(PATIENCE)
    if process.exitcode != 0:
        left.append(f"{lock}, which can't be had")
        process.kill()
        process.join()
    for server in servers:
        with Redis.from_url(server.url) as redis:
            there = redis.keys("*")
            lasting = {key for key in there if redis.ttl(key) == -1}
            left += [key.decode() for key in lasting - {CLOCK, INDEX, MISSED, GUARD}]
            if INDEX in there:
                # The lease may have ended before its release.
                seconds, micro = redis.time()
                millis = seconds * 1000 + micro / 1000
                left += [name.decode() for name in redis.zrangebyscore(INDEX, millis, "+inf")]
    journal.write("left", keys=left)
    journal.close()


class _Arena:
    def __init__(self, plan: Plan, journal: Path, url: str, site: Site) -> None:
        self._plan = plan
        self._site = site
        self._journal = Journal(journal, "arena")
        self._task = Task(
            peer=plan.peer,
            url=url,
            timeout=plan.peer.patience(plan.ttl),
            journal=journal,
            register=journal.with_name("register"),
            lease=plan.ttl,
            section=plan.section,
            # A long section would make the wait behind it as long, and fairness hard to see.
            long=plan.long if plan.faults else 0.0,
            waits=plan.waits,
            until=now() + plan.seconds,
            seed=plan.seed,
            settings=plan.settings,
        )
        self._workers: dict[str, BaseProcess] = {}
        self._started = 0

    def run(self) -> None:
        register = Journal(self._task.journal, "register")
        with RegisterServer(self._task.register, register):
            try:
                for _ in range(self._plan.processes):
                    self._start()
                with (
                    Monkey(self._plan, self._task.journal, self._workers),
                    Outages(self._plan, self._task.journal, self._site),
                ):
                    while (left := self._task.until - now()) > 0:
                        self._reap(left)
                        while len(self._workers) < self._plan.processes:
                            self._start()
                # Nothing is done to them any more: whoever waits gets its turn.
                give_up = now() + PATIENCE
                while self._workers and now() < give_up:
                    self._reap(give_up - now())
            finally:
                for process in self._workers.values():
                    process.kill()
                    process.join()
        self._journal.write("end")
        self._journal.close()
        register.close()

    def _start(self) -> None:
        self._started += 1
        who = f"worker {self._started}"
        process = CONTEXT.Process(target=work, args=(self._task, who), daemon=True)
        process.start()
        self._workers[who] = process

    def _reap(self, seconds: float) -> None:
        """Wait until one ends, or the time is up."""
        connection.wait([process.sentinel for process in self._workers.values()], seconds)
        for who, process in list(self._workers.items()):
            if not process.is_alive():
                process.join()
                del self._workers[who]


class Outages:
    """Lets an outage come now and then."""

    def __init__(self, plan: Plan, journal: Path, site: Site) -> None:
        self._plan = plan
        self._site = site
        self._reader = Reader(journal)
        self._journal = Journal(journal, "outages")
        self._dice = random.Random(plan.seed)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        if self._plan.outage:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._enough.set()
        if self._plan.outage:
            self._thread.join()
        self._journal.close()

    def _run(self) -> None:
        while not any(event["what"] == "granted" for event in self._reader.news()):
            if self._enough.wait(0.01):
                return  # they did not come so far
        pause = self._dice.uniform(0.0, 0.5)  # a busy machine has taken its time until here
        while not self._enough.wait(pause * self._plan.every):
            pause = self._dice.uniform(0.5, 1.5)
            self._journal.write(self._plan.outage)
            getattr(self._site, self._plan.outage)(self._enough)
            if self._site.once:
                return


class Monkey:
    """Follows the journal, and now and then strikes who asks for the lock or has got it."""

    def __init__(self, plan: Plan, journal: Path, workers: dict[str, BaseProcess]) -> None:
        self._plan = plan
        self._reader = Reader(journal)
        self._journal = Journal(journal, "monkey")
        self._workers = workers
        self._planned: list[tuple[float, int, Callable[[str], Any], str]] = []
        self._stopped: set[str] = set()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._enough.set()
        self._thread.join()
        for who in list(self._stopped):
            self._continue(who)
        self._journal.close()

    def _run(self) -> None:
        while not self._enough.wait(0.002):
            for event in self._reader.news():
                if event["what"] == "ask":
                    # Up to as long as one usually waits.
                    self._consider(event, self._plan.processes * self._plan.section[1])
                elif event["what"] == "granted":
                    self._consider(event, self._plan.section[1])
            while self._planned and self._planned[0][0] <= now():
                _, _, strike, who = heapq.heappop(self._planned)
                strike(who)

    def _consider(self, event: Event, within: float) -> None:
        """Decide what becomes of one process here. A seed always decides the same."""
        who, number = event["who"], event["number"]
        dice = random.Random(f"{self._plan.seed} {who} {number} {event['what']}")
        if dice.random() < self._plan.kills / 2:
            self._later(dice.uniform(0, within), self._kill, who)
        if dice.random() < self._plan.stops / 2:
            length = dice.uniform(0.25, 2.5) * self._plan.ttl
            self._later(dice.uniform(0, within), partial(self._stop, seconds=length), who)

    def _later(self, seconds: float, strike: Callable[[str], Any], who: str) -> None:
        heapq.heappush(self._planned, (now() + seconds, len(self._planned), strike, who))

    def _signal(self, who: str, number: int) -> bool:
        process = self._workers.get(who)
        if process is None or process.pid is None:
            return False
        try:
            # And not process.kill(), which may reap it while the arena does.
            os.kill(process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _kill(self, who: str) -> None:
        # Written first: whoever reads of an attempt without an end has to know why.
        self._journal.write("kill", whom=who)
        self._signal(who, signal.SIGKILL)
        self._stopped.discard(who)

    def _stop(self, who: str, seconds: float) -> None:
        if who not in self._stopped and self._signal(who, signal.SIGSTOP):
            self._stopped.add(who)
            self._journal.write("stop", whom=who)
            self._later(seconds, self._continue, who)

    def _continue(self, who: str) -> None:
        if who in self._stopped:
            self._stopped.discard(who)
            self._journal.write("continue", whom=who)
            self._signal(who, signal.SIGCONT)
