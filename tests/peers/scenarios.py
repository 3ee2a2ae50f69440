"""What a lock may go through, as short plays for several processes, each with one clear outcome.

A scenario gets a stage with a server of its own, and says what became of it: a short fact, and
whether a user can be content with that. `NAME` is the lock and `stage.ttl` its ttl in all of them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple, Self

from redis import Redis

from devtools.redis_server import RedisServer
from django_redislock.base.clock import now
from tests.faults.proxy import Fault, Proxy
from tests.faults.torture.register import Register
from tests.waiting import PATIENCE, eventually

from .adapters import Peer
from .agent import Agent

NAME = "job"

POLLS = (0.3, 0.5)
"""Seconds after which a waiter that polls has asked: that is all one can know of it. They vary,
or twenty waiters would poll in step."""


class Outcome(NamedTuple):
    fact: str
    good: bool | None
    """None: the library makes no such promise, so there is nothing to judge."""


class Stage:
    """A server, a library, and as many processes as are wanted."""

    def __init__(self, peer: type[Peer], slack: float) -> None:
        self.peer = peer
        self.ttl = 2.0
        """Seconds that each lease lives."""
        self.slack = slack
        """Seconds by which a good outcome may be late, since the machine is busy."""
        self.server = RedisServer(tcp_port=0)
        self._agents: list[Agent] = []
        self._proxy: Proxy | None = None

    def __enter__(self) -> Self:
        self.server.start()
        self.redis = Redis.from_url(self.server.url)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for agent in self._agents:
            agent.close()
        if self._proxy is not None:
            self._proxy.__exit__()
        self.redis.close()
        self.server.stop()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.tcp_port}/0"

    @property
    def key(self) -> str:
        return self.peer.key(NAME)

    def agent(self, *, url: str = "", timeout: float | None = None) -> Agent:
        self._agents.append(Agent(self.peer, url or self.url, timeout))
        return self._agents[-1]

    def warm(self, agent: Agent) -> None:
        """Let it use the lock once: scripts are loaded, and a lost reply hits what it should."""
        assert agent.do("acquire", NAME, self.ttl, 0).value
        agent.do("extend")
        agent.do("release")

    def holder(self, *, url: str = "") -> Agent:
        """A process that holds the lock."""
        agent = self.agent(url=url)
        self.warm(agent)
        assert agent.do("acquire", NAME, self.ttl, 0).value
        return agent

    def waiter(self) -> Agent:
        """A process that waits for the lock, and keeps it."""
        [waiter] = self._waiters(1, "acquire", None)
        return waiter

    def next(self, ttl: float | None = None) -> Agent:
        """A process that has asked for the lock, and perhaps has it already."""
        agent = self.agent()
        agent.begin("acquire", NAME, ttl or self.ttl, None)
        return agent

    def turns(self, count: int) -> list[Agent]:
        """So many processes that wait for the lock, each for one short turn."""
        return self._waiters(count, "turn", 0.02)

    def _waiters(self, count: int, what: str, last: float | None) -> list[Agent]:
        before = self.peer.waiting(self.redis, NAME)
        agents = [self.agent() for _ in range(count)]
        for agent in agents:
            agent.begin(what, NAME, self.ttl, last)
        if before is None:
            time.sleep(random.uniform(*POLLS))
        else:
            eventually(lambda: self.peer.waiting(self.redis, NAME) == before + count)
        return agents

    def patience(self, seconds: float) -> float:
        """How long to look for what should take so many seconds."""
        return 2 * seconds + 2 * self.ttl + self.slack

    def lease_left(self) -> float:
        """Seconds for which the server keeps the present lease."""
        return max(0, self.redis.pttl(self.key)) / 1000

    def proxy(self) -> Proxy:
        """Loses what it is told to, for the processes that get its url."""
        self._proxy = Proxy(self.server)
        return self._proxy.__enter__()


Scenario = Callable[[Stage], Outcome]
SCENARIOS: dict[str, Scenario] = {}


def scenario(title: str) -> Callable[[Scenario], Scenario]:
    def keep(play: Scenario) -> Scenario:
        SCENARIOS[title] = play
        return play

    return keep


def after(seconds: float) -> str:
    return "at once" if seconds < 0.05 else f"after {seconds:.1f} s"


def served(stage: Stage, waiter: Agent, since: float, within: float) -> Outcome:
    """A waiter that should get the lock within so many seconds."""
    answer = waiter.end(stage.patience(within))
    if answer is None:
        return Outcome("never", False)
    if answer.error or not answer.value:
        return Outcome(f"error: {answer.error}" if answer.error else "not acquired", False)
    seconds = answer.at - since
    return Outcome(after(seconds), seconds <= within + stage.slack)


# Somebody dies, or stops.


def served_at_the_end_of_the_lease(stage: Stage, leave: Callable[[Agent], object]) -> Outcome:
    """The holder leaves without a release, and its waiter has to wait for the end of the lease."""
    holder = stage.holder()
    time.sleep(stage.ttl / 3)  # so that whoever waits for a ttl at a time wakes at another time
    waiter = stage.waiter()
    ends = now() + stage.lease_left()
    leave(holder)
    return served(stage, waiter, ends, 0.25)


@scenario("The holder is killed: when its lease has ended, the next one has the lock")
def killed_holder(stage: Stage) -> Outcome:
    return served_at_the_end_of_the_lease(stage, Agent.kill)


@scenario("The holder drops it unreleased: when its lease has ended, the next one has the lock")
def forgotten(stage: Stage) -> Outcome:
    return served_at_the_end_of_the_lease(stage, lambda holder: holder.do("forget"))


@scenario(
    "Somebody removed the TTL (PERSIST), then the holder is killed: the next one has the lock"
)
def persisted(stage: Stage) -> Outcome:
    holder = stage.holder()
    stage.redis.persist(stage.key)
    time.sleep(stage.ttl)  # long enough for whoever renews
    waiter = stage.waiter()
    killed = now()
    holder.kill()
    return served(stage, waiter, killed, stage.ttl)


@scenario("The first waiter is killed, then the lock released: the second one has it")
def killed_waiter(stage: Stage) -> Outcome:
    holder, first, second = stage.holder(), stage.waiter(), stage.waiter()
    first.kill()
    released = now()
    holder.do("release")
    return served(stage, second, released, 0.25)


@scenario("The first waiter is stopped, then the lock released: the second one has it")
def stopped_waiter(stage: Stage) -> Outcome:
    holder, first, second = stage.holder(), stage.waiter(), stage.waiter()
    first.signal(signal.SIGSTOP)
    released = now()
    holder.do("release")
    return served(stage, second, released, 1.0)


# Taking turns.


@scenario("Twenty wait: pairs of them that are served out of order")
def order(stage: Stage) -> Outcome:
    if not stage.peer.renews:
        stage.ttl = 30.0  # for it takes a while until all of them wait
    holder = stage.holder()
    waiters = [waiter for _ in range(20) for waiter in stage.turns(1)]
    holder.do("release")
    turns = [waiter.end(PATIENCE) for waiter in waiters]
    if any(turn is None or turn.error for turn in turns):
        return Outcome("not all were served", False)
    began = [turn.value[0] for turn in turns if turn is not None]
    inversions = sum(later < earlier for earlier, later in combinations(began, 2))
    return Outcome(f"{inversions} of 190" if inversions else "none", inversions == 0)


@scenario(
    "One waits; the holder releases and tries again at once, twenty times: it gets in before"
)
def barging(stage: Stage) -> Outcome:
    most = 0
    for _ in range(3):  # luck may let the waiter in
        holder, waiter = stage.holder(), stage.waiter()
        again = holder.do("take_again", NAME, stage.ttl, 20)
        waiter.end()
        waiter.do("release")
        if again.error:
            return Outcome(f"error: {again.error}", False)
        most = max(most, again.value)
    return Outcome(f"up to {most} times" if most else "never", most == 0)


# A lease and its end.


@scenario("The job lasts longer than the ttl: the lock is exclusive")
def long_job(stage: Stage) -> Outcome:
    stage.holder()
    began = now()
    answer = stage.next().end(3 * stage.ttl)
    if answer is None:
        return Outcome("to its end", True)
    return Outcome(f"until two are at work, {after(answer.at - began)}", False)


def pause(stage: Stage) -> tuple[Agent, Agent]:
    """A holder that slept through its lease, and the one that has the lock now."""
    paused = stage.holder()
    paused.signal(signal.SIGSTOP)
    # Longer, so that this one's lease is sure to last; but python-redis-lock waits for as long
    # as that before it looks again, and its socket gives up after five seconds.
    successor = stage.next(ttl=4.0)
    answer = successor.end()
    assert answer is not None
    assert answer.value
    paused.signal(signal.SIGCONT)
    return paused, successor


@scenario("The holder was paused for longer than its lease: it learns that before its next step")
def told(stage: Stage) -> Outcome:
    paused, _ = pause(stage)
    if paused.do("is_ours").value:
        return Outcome("no", False)
    return Outcome(stage.peer.ask, True)


@scenario("It was paused within that step: its write, after its successor's")
def late_write(stage: Stage) -> Outcome:
    database = Register()
    paused, successor = pause(stage)
    assert database.accepts(successor.do("token").value)
    if database.accepts(paused.do("token").value):
        return Outcome("is accepted: there is no fencing token", False)
    return Outcome("is refused, by its fencing token", True)


@scenario("It releases, after its successor has acquired: its successor's lock")
def late_release(stage: Stage) -> Outcome:
    paused, successor = pause(stage)
    paused.do("release")
    holds = successor.do("is_ours").value and stage.redis.exists(stage.key)
    return Outcome("stays", True) if holds else Outcome("is released", False)


@scenario("The holder forks, and the child leaves the block: the parent's lock")
def fork(stage: Stage) -> Outcome:
    holder = stage.holder()
    holder.do("leave_in_child")
    holds = holder.do("is_ours").value and stage.redis.exists(stage.key)
    return Outcome("stays", True) if holds else Outcome("is released by the child", False)


# The network, and the server.


@scenario("The reply to an acquire is lost (connection reset)")
def lost_acquire(stage: Stage) -> Outcome:
    proxy = stage.proxy()
    agent = stage.agent(url=proxy.url)
    stage.warm(agent)
    rule = proxy.on(stage.peer.acquires, Fault.RESET_AFTER)
    answer = agent.do("acquire", NAME, stage.ttl, 0)
    rule.happened()
    if answer.value:
        return Outcome("acquired", True)
    said = f"error: {answer.error}" if answer.error else "told that it is taken"
    free = served(stage, stage.next(), answer.at, 0.25)
    return Outcome(f"{said}; it is free {free.fact}", free.good)


@scenario("The reply to a release is lost (connection reset)")
def lost_release(stage: Stage) -> Outcome:
    proxy = stage.proxy()
    holder = stage.holder(url=proxy.url)
    rule = proxy.on(stage.peer.releases, Fault.RESET_AFTER)
    answer = holder.do("release")
    rule.happened()
    if answer.error:
        return Outcome(f"error: {answer.error}, though it was released", False)
    if not answer.value:
        return Outcome("told that it wasn't its own, though it was released", False)
    return Outcome("released", True)


@scenario("A renewal gets lost in silence: the lease")
def lost_renewal(stage: Stage) -> Outcome:
    if not stage.peer.renews:
        return Outcome("nothing is renewed", None)
    proxy = stage.proxy()
    holder = stage.holder(url=proxy.url)
    proxy.on(stage.peer.extends, Fault.LOSE_REQUEST).happened()
    answer = stage.next().end(2 * stage.ttl)
    if answer is None and holder.do("is_ours").value:
        return Outcome("goes on", True)
    return Outcome("is another one's", False)


@scenario("SCRIPT FLUSH between calls")
def script_flush(stage: Stage) -> Outcome:
    holder = stage.holder()
    for step in ("extend", "release"):
        stage.redis.script_flush()
        answer = holder.do(step)
        if answer.error or not answer.value:
            return Outcome(f"error in {step}: {answer.error}", False)
    return Outcome("unnoticed", True)


@scenario("Five wait while the server is restarted empty: all of them have had the lock")
def restarted_empty(stage: Stage) -> Outcome:
    return outage(stage, 0.0)


@scenario("Five wait while the server is away for 3 s: all of them have had the lock")
def down(stage: Stage) -> Outcome:
    return outage(stage, 3.0)


def outage(stage: Stage, seconds: float) -> Outcome:
    stage.holder()
    waiters = stage.turns(5)
    stage.server.stop()
    time.sleep(seconds)
    stage.server.start()
    back = now()
    turns = [waiter.end() for waiter in waiters]
    errors = [turn.error for turn in turns if turn is not None and turn.error]
    if errors:
        return Outcome(f"error for {len(errors)} of them: {errors[0]}", False)
    if None in turns:
        return Outcome("not all were served", False)
    last = max(turn.value[1] for turn in turns if turn is not None)
    return Outcome(after(last - back), last - back <= 2.0 + stage.slack)


@scenario(
    "The server stalls for 2 s, sockets time out after 0.5 s: who waits for 10 s has the lock"
)
def stalled(stage: Stage) -> Outcome:
    agent = stage.agent(timeout=0.5)
    stage.warm(agent)
    assert stage.server.pid is not None
    os.kill(stage.server.pid, signal.SIGSTOP)
    agent.begin("acquire", NAME, stage.ttl, 10)
    time.sleep(2.0)
    os.kill(stage.server.pid, signal.SIGCONT)
    goes_on = now()
    return served(stage, agent, goes_on, 1.0)


@scenario("Something else is at the key, such as a list")
def foreign(stage: Stage) -> Outcome:
    stage.redis.rpush(stage.key, "somebody else's")
    agent = stage.agent()
    began = now()
    answer = agent.do("acquire", NAME, stage.ttl, 1)
    if stage.redis.lrange(stage.key, 0, -1) != [b"somebody else's"]:
        return Outcome("it is overwritten", False)
    if answer.error and answer.at - began < 0.5 + stage.slack:
        return Outcome(f"error at once: {answer.error}", True)
    return Outcome("told that the lock is taken, for as long as it waits", False)


@scenario("One process holds 1000 locks: threads that take care of them")
def many(stage: Stage) -> Outcome:
    answer = stage.agent().do("hold_many", 1000, 30.0)
    if answer.error:
        return Outcome(f"error: {answer.error}", False)
    threads = answer.value
    return Outcome(
        f"{threads}" if stage.peer.renews else f"{threads}, as nothing is renewed", threads <= 2
    )


def play(peer: type[Peer], title: str, *, slack: float = 0.25) -> Outcome:
    with Stage(peer, slack) as stage:
        return SCENARIOS[title](stage)
