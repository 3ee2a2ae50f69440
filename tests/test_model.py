"""Whatever happens in whichever order, the mutex keeps its promises; and if it did not, we saw it.

Hypothesis makes up stories in the world of model.py. So that silence means something, bugs are
planted one at a time, and each has to be found. `REDISLOCK_EXAMPLES=20000` tells more stories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_redislock.lease import claims
from django_redislock.primitives import mutex, queued, scripts
from django_redislock.primitives.contract import Grant, Refusal
from django_redislock.primitives.queued import Anchor
from tests.model import Port, Process, Violation, World

T = TypeVar("T")

EXAMPLES = int(os.environ.get("REDISLOCK_EXAMPLES", "200"))
STEPS = 60
PLANTED = 12_000
"""In so many stories a planted bug is found. Most of them are found in the first twenty. Which
stories there are depends on the modules that are loaded: Hypothesis takes constants from them."""

TTLS = st.sampled_from([3.0, 10.0, 30.0])

which = st.integers(0, 7)
"""One of those to whom it can happen."""


def pick(of: Sequence[T], number: int) -> T:
    return of[number % len(of)]


class Network(RuleBasedStateMachine):
    """Processes at work, and a network that loses and delays what they send."""

    after_loss = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(after_loss=self.after_loss)
        self.ttl: float | None = None
        """That of everybody, if all have the same."""

    @initialize(
        ttl=TTLS,
        waiters=st.integers(0, 2),
        delayed=st.booleans(),
        answered=st.booleans(),
        beside=st.none() | which,
    )
    def begin(
        self, ttl: float, waiters: int, delayed: bool, answered: bool, beside: int | None
    ) -> None:
        """A holder, perhaps one that does not know it yet, and some waiters."""
        if self.after_loss:
            self.ttl = ttl
        self.start(0, ttl, listens=True, delayed=delayed, beside=None)
        holder = self.world.processes[0].main
        until = "work" if answered else "answer mutex_"
        while not (holder.done or holder.at.startswith(until)):
            self.world.step(holder)
        for _ in range(waiters):
            self.start(None, ttl, listens=True, delayed=False, beside=beside)
            self.world.go_on(self.world.processes[-1].main)

    @invariant()
    def promises(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.drain()

    # Somebody does something.

    @precondition(lambda self: len(self.world.alive()) < 5 and len(self.world.processes) < 26)
    @rule(
        wait=st.sampled_from([None, 0, 2.0]),
        ttl=TTLS,
        listens=st.booleans(),
        delayed=st.booleans(),
        beside=st.none() | which,
    )
    def start(
        self, wait: float | None, ttl: float, listens: bool, delayed: bool, beside: int | None
    ) -> None:
        """Its first request may be one that gets no answer, and arrives later. It may be another
        thread of a process that is there already."""
        others = [process for process in self.world.alive() if not process.stopped]
        neighbour = pick(others, beside) if others and beside is not None else None
        self.world.start(wait, self.ttl or ttl, listens=listens, beside=neighbour)
        if delayed:
            self.world.fail(self.world.processes[-1].main, arrives=True)

    @precondition(lambda self: self.world.runnable())
    @rule(which=which)
    def step(self, which: int) -> None:
        self.world.step(pick(self.world.runnable(), which))

    @precondition(lambda self: self.world.runnable())
    @rule(which=which)
    def go_on(self, which: int) -> None:
        self.world.go_on(pick(self.world.runnable(), which))

    @precondition(lambda self: self.world.working())
    @rule(which=which)
    def leave(self, which: int) -> None:
        self.world.step(pick(self.world.working(), which).main)

    @precondition(lambda self: self.renewable())
    @rule(which=which, ttl=TTLS, at_once=st.booleans())
    def renew(self, which: int, ttl: float, at_once: bool) -> None:
        process = pick(self.renewable(), which)
        self.world.renew(process, self.ttl or ttl)
        if at_once:
            self.world.go_on(process.renewal)

    def renewable(self) -> list[Process]:
        return [
            process
            for process in self.world.working()
            if process.inside() and (process.renewal is None or process.renewal.done)
        ]

    # Time.

    @precondition(lambda self: self.world.waiting())
    @rule()
    def to_next_waker(self) -> None:
        self.world.to_next_waker()

    @rule(seconds=st.sampled_from([0.4, 1.1, 3.1, 6.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        """A little, and longer than a claim window, a short lease, a sign of life, any lease."""
        self.world.time_passes(seconds)

    # Something goes wrong.

    @precondition(lambda self: self.world.in_flight())
    @rule(which=which, arrives=st.booleans(), passing=st.sampled_from([True, True, False]))
    def fail(self, which: int, arrives: bool, passing: bool) -> None:
        self.world.fail(pick(self.world.in_flight(), which), arrives=arrives, passing=passing)

    @precondition(lambda self: self.world.late)
    @rule(which=which)
    def arrive(self, which: int) -> None:
        self.world.arrive(pick(self.world.late, which))

    @precondition(lambda self: self.world.waiting())
    @rule(which=which, twice=st.booleans())
    def messages(self, which: int, twice: bool) -> None:
        """From now on they take their time; or one of them comes."""
        process = pick(self.world.waiting(), which)
        if process.io.box.messages:
            self.world.deliver(process, twice=twice)
        else:
            self.world.slow_down(process)


class AtLength(Network):
    """The same without short requests, as on a cluster, and with messages that are hints only, as
    to processes of an earlier version."""

    def __init__(self) -> None:
        super().__init__()
        self.world.server.plain = False
        self.world.earlier = True


class Mishaps(Network):
    """Processes are killed, stopped and interrupted, and wake up at the wrong time; operators."""

    @precondition(lambda self: self.world.waiting())
    @rule(which=which, what=st.sampled_from(["for nothing", "lost", "connection"]))
    def wake_up(self, which: int, what: str) -> None:
        process = pick(self.world.waiting(), which)
        if what == "for nothing":
            self.world.wake(process)
        elif what == "lost":
            self.world.lose_wake_ups()
        elif process.io.box.away:
            self.world.reconnect(process)
        elif process.io.box.began:
            self.world.lose_connection(process)

    @precondition(lambda self: self.world.alive())
    @rule(
        which=which,
        what=st.sampled_from(["SIGSTOP", "SIGSTOP", "SIGINT", "SIGKILL"]),
        arrives=st.booleans(),
    )
    def signal(self, which: int, what: str, arrives: bool) -> None:
        process = pick(self.world.alive(), which)
        if what == "SIGKILL":
            self.world.kill(process, arrives=arrives)
        elif process.stopped:
            self.world.resume(process)
        elif what == "SIGSTOP":
            self.world.stop(process)
        elif not process.working:
            self.world.interrupt(process, arrives=arrives)

    @precondition(lambda self: self.world.server.holders)
    @rule(which=st.integers(0, 2))
    def clear(self, which: int) -> None:
        """The lock of the one that holds it, or of one that the operator saw before."""
        self.world.clear(pick(self.world.server.holders[::-1], which))


class Disaster(Mishaps):
    """All that, on a server whose clock is set and whose data get lost."""

    @rule(by=st.sampled_from([-60.0, 60.0]))
    def set_clock(self, by: float) -> None:
        self.world.set_clock(by)

    @rule()
    def flush(self) -> None:
        self.world.flush()


class AfterLoss(Mishaps):
    """Whatever goes wrong, on a server that loses its data, and `AFTER_LOSS = "wait"`."""

    after_loss = True

    @initialize(
        ttl=TTLS,
        waiters=st.integers(0, 2),
        delayed=st.booleans(),
        answered=st.booleans(),
        beside=st.none() | which,
        lost=st.sampled_from(["", "unnoticed", "asks", "asks late", "answered"]),
    )
    def begin(
        self,
        ttl: float,
        waiters: int,
        delayed: bool,
        answered: bool,
        beside: int | None,
        lost: str,
    ) -> None:
        """The server may have forgotten the holder, which may be about to reinstate its lease."""
        super().begin(ttl, waiters, delayed, answered, beside)
        holder = self.world.processes[0]
        if lost:
            self.world.flush()
        if lost in ("", "unnoticed") or not holder.working:
            return
        self.world.renew(holder, ttl)
        renewal = holder.renewal
        until = "answer mutex_reinstate" if lost == "answered" else "send mutex_reinstate"
        while not renewal.done and renewal.at != until:
            self.world.step(renewal)
        if lost == "asks late" and not renewal.done:
            self.world.fail(renewal, arrives=True)

    @precondition(lambda self: not self.cleared())
    @rule()
    def flush(self) -> None:
        self.world.flush()

    def cleared(self) -> bool:
        """Whether somebody does not know yet that an operator has cleared its lock. The server
        forgets that, too, and then there are two of whom each may reinstate its lease."""
        cleared = self.world.server.cleared
        return any(process.claim.token in cleared for process in self.world.alive())


def tell(stories: type[Network], examples: int, *, shrink: bool = True) -> None:
    """Always the same ones: a failure here is one everywhere."""
    run_state_machine_as_test(
        stories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_story_depends_on_what_else_is_drawn() -> None:
    """Else Hypothesis, which tells it again, finds another one, and says that it is flaky."""

    def story() -> list[str]:
        world = World()
        for _ in range(2):
            world.start(None, 10.0, listens=True)
            world.go_on(world.processes[-1].main)
        world.to_next_waker()
        return world.server.log

    first = story()
    random.random()
    assert story() == first


def test_a_first_request_that_arrives_when_its_sender_has_left() -> None:
    """It knows no ticket, so it stands behind whoever came before it arrived, also before others
    whose sender came later. A story that was told by chance."""
    state = Mishaps()
    state.begin(ttl=3.0, waiters=0, delayed=True, answered=True, beside=None)
    state.time_passes(seconds=2.0)
    state.signal(arrives=False, what="SIGKILL", which=0)
    state.time_passes(seconds=1.1)
    for _ in range(2):
        state.start(beside=None, delayed=True, listens=False, ttl=3.0, wait=None)
        state.go_on(which=0)
    state.start(beside=None, delayed=False, listens=False, ttl=3.0, wait=None)
    state.go_on(which=0)
    state.signal(arrives=False, what="SIGINT", which=2)
    state.start(beside=None, delayed=False, listens=False, ttl=3.0, wait=None)
    state.time_passes(seconds=3.1)
    state.go_on(which=0)
    state.fail(arrives=False, passing=True, which=0)
    state.time_passes(seconds=3.1)
    state.start(beside=None, delayed=False, listens=False, ttl=3.0, wait=None)
    state.teardown()


@pytest.mark.parametrize(
    "stories", [Network, Mishaps, pytest.param(AtLength, marks=pytest.mark.slow)]
)
def test_every_story_keeps_the_promises(stories: type[Network]) -> None:
    """One server that loses nothing and whose clock goes on; all else goes wrong in turn."""
    tell(stories, EXAMPLES)


def test_no_two_holders_after_lost_data() -> None:
    """With `AFTER_LOSS = "wait"` lost data cost nobody a lease, and nobody gets a second one."""
    tell(AfterLoss, EXAMPLES)


@pytest.mark.parametrize("how", ["stopped", "late"])
def test_a_lease_that_has_ended_is_not_reinstated(how: str) -> None:
    """Its holder was stopped, or its request was late; others have held the lock since, and the
    server has forgotten that, too."""
    world = World(after_loss=True)
    world.start(0, 3.0, listens=True)
    [first] = world.processes
    while not first.working:
        world.step(first.main)
    world.flush()
    world.renew(first, 3.0)
    assert first.renewal is not None
    while first.renewal.at != "send mutex_reinstate":
        world.step(first.renewal)
    if how == "stopped":
        world.stop(first)
    else:
        world.fail(first.renewal, arrives=True)
    world.start(None, 3.0, listens=True)
    second = world.processes[1]
    while not second.working:
        world.go_on(second.main)
        world.to_next_waker()
    world.flush()
    if how == "stopped":
        world.resume(first)
        world.step(first.renewal)
    else:
        world.arrive(world.late[-1])
    world.check()
    assert second.inside()
    world.renew(second, 3.0)
    assert second.renewal is not None
    while not second.renewal.done:
        world.step(second.renewal)
    assert second.inside()
    world.drain()


@pytest.mark.slow
def test_what_is_promised_in_a_disaster() -> None:
    """When data are lost or the clock is set, fencing tokens go on growing, leases of afterwards
    are as good as any, and everybody comes to an end."""
    tell(Disaster, EXAMPLES)


# Bugs. Each is planted in the place of one function, and gets that one first; or in a script.


class Bug(NamedTuple):
    what: str
    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: type[Network]


BUGS: list[Bug] = []


def bug(where: Any, what: str, found_by: type[Network] = Mishaps) -> Callable[[T], T]:
    def planted(function: Any) -> Any:
        def plant(patch: pytest.MonkeyPatch) -> None:
            honest = getattr(where, what)
            patch.setattr(where, what, lambda *args, **options: function(honest, *args, **options))

        BUGS.append(Bug(function.__name__, plant, found_by))
        return function

    return planted


def script(what: str, file: str, old: str, new: str, found_by: type[Network] = Mishaps) -> None:
    """A bug in a Lua file."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        read = scripts._read

        def planted(filename: str) -> str:
            text = read(filename)
            assert filename != f"{file}.lua" or text.count(old) == 1
            return text.replace(old, new) if filename == f"{file}.lua" else text

        patch.setattr(scripts, "_read", planted)
        patch.setattr(scripts, "load", cache(scripts.load.__wrapped__))

    BUGS.append(Bug(what, plant, found_by))


script(
    "a release asks not whose it is", "mutex_release_names", "token_of(value) == token", "value"
)
script("a renewal is told yes", "mutex_extend", "string.sub(value, 1, 32) == token", "true")
script(
    "as with SET NX, the lock is busy, be it with the caller's own token",
    "mutex_acquire",
    "local answer =",
    """
local its = look(lock)
if token_of(its) == token then return {0, its, 1000, '0', 0, ARGV[5], false, 1} end
local answer =""",
)
script(
    "the first of the queue has the lock for its whole ttl, whether it lives or not",
    "queue",
    "    local there = seen",
    """
    if seen then
      leave_queue(first)
      grant(first, ttl, ttl, says, '+')
      tell(inbox, first)
      return first
    end
    local there = seen""",
)
script("there is no claim window", "queue", "(first, ttl, CLAIM_WINDOW", "(first, ttl, 30000")
CONFIRMS = "mark == '?' or redis.call('PTTL', lock) < ttl"
script("confirming does not set the ttl", "mutex_confirm", CONFIRMS, "mark ~= '?'")
script("a late acquire shortens the lease", "mutex_confirm", CONFIRMS, "true", AtLength)
FENCE = "math.max(now, 1 + last_fence)"
script("when the clock was set back, fencing tokens fall", "fence", FENCE, "now", Disaster)
script("a fencing token is a counter", "fence", FENCE, "1 + last_fence", Disaster)
script("a withdrawal is forgotten", "withdraw", "if late and not why", "if false")
script("all waiters are at home", "queue", "inbox == own_inbox", "(own_inbox or '') ~= ''")
script("barging in", "mutex_ask", "not values[i] and waited[i] then", "false then")
TAKES = "unpack(keys, 1, #keys - 1)) == 0"
script("taking past the queue", "take", TAKES, "keys[1], keys[3]) == 0")
script("taking after the tombstone", "take", TAKES, "keys[1], keys[2]) == 0", Network)
script("tickets do not count", "mutex_acquire", "ARGV[4], ARGV[5])", "ARGV[4], '')")
script("a waiter is told of a clearing", "clear", "if mark == '?' then", "if false then")
script("nobody pauses", "mutex_guard", "if not left then", "if true then", AfterLoss)
script("the pause is too short", "guard", "left = ttl -", "left = ttl / 2 -", AfterLoss)
script("no guard is written", "guard", "redis.call('SET', guard, integer(now))", "", AfterLoss)
script("each ask begins the pause", "guard", "not since or since > now", "since ~= 0", AfterLoss)
script("a late one is reinstated", "mutex_reinstate", "ARGV[2] == '1' and", "", AfterLoss)


@bug(Port, "wait")
async def woken_is_granted(honest, self, seconds, left, **options):
    """Who is woken believes to have the lock, and does not ask."""
    until = self.now() + seconds
    await honest(self, seconds, left, **options)
    value = self.server.value
    if self.now() < until and value is not None:

        async def script(*args):
            del self.script
            return [1, b"0", str(value.fence).encode()]

        self.script = script


@bug(Anchor, "grant")
def deadline_counts_from_the_message(honest, self, handed, claim, now):
    """It believes in its lease for as long as the message travelled after the lease had ended."""
    return Grant(handed.fencing_token, handed.us, now, lives=handed.lives)


@bug(queued, "read_message")
def handed_for_the_whole_ttl(honest, text, since):
    """It believes in the ttl that it asked for, and not in what it was handed."""
    token, handed = honest(text, since)
    return token, handed and handed._replace(lives=30.0)


@bug(claims, "obtain")
async def deadline_counts_from_the_answer(honest, port, claim, wait):
    """It believes in its lease for as long as the answer travelled after the lease had ended."""
    got = await honest(port, claim, wait)
    return got._replace(sent=port.now()) if isinstance(got, Grant) else got


@bug(Port, "wait", found_by=Network)
async def heir_counts_from_when_it_is_told(honest, self, seconds, left, **options):
    """It believes in its lease for as long as the answer to its neighbour's release travelled
    after the lease had begun."""
    grant = await honest(self, seconds, left, **options)
    return grant and grant._replace(sent=self.now())


@bug(Port, "script")
async def giving_up_keeps_the_place(honest, self, name, keys, args):
    """The last try names its inbox, so it is a place in the queue."""
    if name == "mutex_acquire" and self.box.began:
        args = [*args[:3], self.inbox, args[4]]
    return await honest(self, name, keys, args)


@bug(mutex, "release")
async def every_release_succeeds(honest, port, claim):
    """A holder that had lost the lock is told that it has released it."""
    await honest(port, claim)


@bug(mutex, "reinstate", found_by=AfterLoss)
async def nothing_is_reinstated(honest, port, claims, *args, **options):
    """A holder whose lease was forgotten is told that it has lost it."""
    return [Refusal(None, None) for _ in claims]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stories prove nothing."""
    bug.plant(monkeypatch)
    with pytest.raises(Violation):
        tell(bug.found_by, PLANTED, shrink=False)
