"""Whatever happens in whichever order, the mutex keeps its promises; and if it did not, we saw it.

Hypothesis makes up stories in the world of model.py. So that silence means something, bugs are
planted one at a time, and each has to be found. `REDISLOCK_EXAMPLES=20000` tells more stories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
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
from django_redislock.primitives import mutex, queued
from django_redislock.primitives.contract import Grant, Refusal
from django_redislock.primitives.queued import Anchor
from tests.memory import MemoryServer
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
        """The server may have forgotten the holder, which may be about to put its lease back."""
        super().begin(ttl, waiters, delayed, answered, beside)
        holder = self.world.processes[0]
        if lost:
            self.world.flush()
        if lost in ("", "unnoticed") or not holder.working:
            return
        self.world.renew(holder, ttl)
        renewal = holder.renewal
        until = "answer mutex_put_back" if lost == "answered" else "send mutex_put_back"
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
        forgets that, too, and then there are two of whom each may put its lease back."""
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
def test_a_lease_that_has_ended_is_not_put_back(how: str) -> None:
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
    while first.renewal.at != "send mutex_put_back":
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


# Bugs. Each is planted in the place of one function, and gets that one first.


class Bug(NamedTuple):
    where: Any
    what: str
    function: Callable[..., Any]
    found_by: type[Network]


BUGS: list[Bug] = []


def bug(where: Any, what: str, found_by: type[Network] = Mishaps) -> Callable[[T], T]:
    def planted(function: Any) -> Any:
        BUGS.append(Bug(where, what, function, found_by))
        return function

    return planted


@bug(MemoryServer, "_release")
def release_does_not_ask_whose(honest, self, name, key, token, *args):
    """A release deletes whatever is at the key."""
    return honest(self, name, key, name.value[:32].decode() if name.value else token, *args)


@bug(MemoryServer, "_extend")
def renewal_does_not_ask_whose(honest, self, keys, args):
    """A renewal is told yes, whoever holds the lock."""
    value = self._name(keys[0]).value
    word, store, token, ttl = args
    return honest(self, keys, [word, store, value[:32].decode() if value else token, ttl])


@bug(MemoryServer, "_acquire")
def acquire_twice_is_refused(honest, self, name, key, token, *args):
    """As with SET NX: the lock is busy, be it with the caller's own token."""
    if name.value and name.value.startswith(token.encode()):
        return [0, name.value, 1000, b"0", 0, args[-1].encode(), None]
    return honest(self, name, key, token, *args)


@bug(MemoryServer, "_hand_over")
def dead_waiters_get_the_lock(honest, self, name, key, caller=None):
    """The first of the queue has the lock for its whole ttl, whether it lives or not."""
    first = min(name.queue, key=name.queue.__getitem__, default=None)
    if first in (None, caller):
        return first
    _, ttl, inbox, says = name.waiters[first]
    name.leave_queue(first)
    self._grant(name, key, first, ttl, ttl / 1000, says, "+")
    self.listening.get(inbox, str)(first)
    return first


@bug(MemoryServer, "_hand_over")
def handed_over_for_a_whole_ttl(honest, self, name, key, caller=None):
    """There is no claim window: a stopped waiter costs the others a whole lease."""
    got = honest(self, name, key, caller)
    if got not in (None, caller):
        name.expires = self.clock + 30.0
    return got


@bug(MemoryServer, "_acquire")
def confirming_does_not_set_the_ttl(honest, self, name, key, token, *args):
    """Who was handed the lock has it for the claim window only."""
    window_ends = name.expires
    confirms = name.value and name.value.startswith(f"{token}?".encode())
    answer = honest(self, name, key, token, *args)
    if confirms:
        name.expires = window_ends
    return answer


@bug(MemoryServer, "_acquire", found_by=AtLength)
def late_acquire_shortens_the_lease(honest, self, name, key, token, ttl, *args):
    """An early send that arrives late sets the first ttl again."""
    answer = honest(self, name, key, token, ttl, *args)
    if answer[0] == 1:
        name.expires = self.clock + ttl / 1000
    return answer


@bug(MemoryServer, "_grant", found_by=Disaster)
def fence_is_the_clock(honest, self, name, *args):
    """When the clock was set back, fencing tokens fall."""
    self.fence = None
    return honest(self, name, *args)


@bug(MemoryServer, "_grant", found_by=Disaster)
def fence_is_a_counter(honest, self, name, *args):
    """When data were lost, it begins again."""
    fence = (self.fence or 0) + 1
    honest(self, name, *args)
    clock, acquired, rest = name.value[33:].split(b"|", 2)
    value = b"%d|%b|%b" % (fence, acquired or clock, rest)
    self.fence, name.value = fence, name.value[:33] + value
    return str(fence)


@bug(Port, "wait")
async def woken_is_granted(honest, self, seconds, left, *, rest=0.0):
    """Who is woken believes to have the lock, and does not ask."""
    until = self.now() + seconds
    await honest(self, seconds, left, rest=rest)
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


@bug(MemoryServer, "_release")
def no_tombstone(honest, self, name, key, token, withdraw, own_inbox):
    """An acquire that arrives after its withdrawal is carried out."""
    return honest(self, name, key, token, 0, own_inbox)


@bug(claims, "obtain")
async def deadline_counts_from_the_answer(honest, port, claim, wait):
    """It believes in its lease for as long as the answer travelled after the lease had ended."""
    got = await honest(port, claim, wait)
    return got._replace(sent=port.now()) if isinstance(got, Grant) else got


@bug(Port, "wait", found_by=Network)
async def heir_counts_from_when_it_is_told(honest, self, seconds, left, *, rest=0.0):
    """It believes in its lease for as long as the answer to its neighbour's release travelled
    after the lease had begun."""
    grant = await honest(self, seconds, left, rest=rest)
    return grant and grant._replace(sent=self.now())


@bug(MemoryServer, "_hand_over")
def all_of_them_are_at_home(honest, self, name, key, caller=None):
    """Who waits in another process is handed the lock as one of the same process is."""
    first = min(name.queue, key=name.queue.__getitem__, default=None)
    if first not in (None, caller) and self.own_inbox:
        self.own_inbox = name.waiters[first][2]
    return honest(self, name, key, caller)


@bug(Port, "script")
async def giving_up_keeps_the_place(honest, self, name, keys, args):
    """The last try names its inbox, so it is a place in the queue."""
    if name == "mutex_acquire" and self.box.began:
        args = [*args[:3], self.inbox, args[4]]
    return await honest(self, name, keys, args)


@bug(MemoryServer, "_acquire")
def barging_in(honest, self, name, key, token, ttl, says, inbox, ticket):
    """The lock is taken when it is free, though others wait."""
    if name.value is None and token not in name.gone:
        name.leave_queue(token)
        fence = self._grant(name, key, token, ttl, ttl / 1000, says, "|")
        return [1, b"0", fence.encode()]
    return honest(self, name, key, token, ttl, says, inbox, ticket)


@bug(MemoryServer, "_take")
def taking_past_the_queue(honest, self, keys, token, ttl, says):
    """The short request takes a free lock for which others wait."""
    name = self._name(keys[0])
    if name.value is None and name.queue and token not in name.gone:
        return [1, int(self._grant(name, keys[0], token, ttl, ttl / 1000, says, "|"))]
    return honest(self, keys, token, ttl, says)


@bug(MemoryServer, "_take", found_by=Network)
def taking_after_the_tombstone(honest, self, keys, token, ttl, says):
    """A short request that arrives after its withdrawal is carried out."""
    self._name(keys[0]).gone.pop(token, None)
    return honest(self, keys, token, ttl, says)


@bug(MemoryServer, "_acquire")
def tickets_do_not_count(honest, self, name, *args):
    """Who was passed over comes last when it is back."""
    return honest(self, name, *args[:-1], "")


@bug(mutex, "release")
async def every_release_succeeds(honest, port, claim):
    """A holder that had lost the lock is told that it has released it."""
    await honest(port, claim)


@bug(MemoryServer, "_clear")
def waiter_is_told_cleared(honest, self, name, *args):
    """A lock is cleared that was handed over and not confirmed: its waiter, who can't know of
    it, gets an error in place of the lock."""
    if name.value:
        name.mark("+")
    return honest(self, name, *args)


@bug(MemoryServer, "_acquire_guarded", found_by=AfterLoss)
def nobody_pauses(honest, self, *args):
    """After lost data, whoever asks first has the lock."""
    return self._acquire(*args)


@bug(MemoryServer, "_pause", found_by=AfterLoss)
def the_pause_is_too_short(honest, self, ttl):
    """It ends before the lease of a holder that was just renewed."""
    return honest(self, ttl // 2)


@bug(MemoryServer, "_pause", found_by=AfterLoss)
def the_guard_is_not_written(honest, self, ttl):
    """The pause begins anew each time that somebody asks."""
    left, self.guard = honest(self, ttl), self.guard if self.guard == 0 else None
    return left


@bug(MemoryServer, "_pause", found_by=AfterLoss)
def each_ask_begins_the_pause_anew(honest, self, ttl):
    """Two who wait keep each other from the lock."""
    if self.guard:
        self.guard = self._now()
    return honest(self, ttl)


@bug(mutex, "put_back", found_by=AfterLoss)
async def nothing_is_put_back(honest, port, claims, *args, **options):
    """A holder whose lease was forgotten is told that it has lost it."""
    return [Refusal(None, None) for _ in claims]


@bug(MemoryServer, "_put_back", found_by=AfterLoss)
def put_back_by_a_request_that_was_withdrawn(honest, self, keys, args):
    """It arrives after the release, and the lock is held for nobody."""
    return honest(self, keys, [args[0], 1, *args[2:]])


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.function.__name__)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stories prove nothing."""
    honest = getattr(bug.where, bug.what)

    def planted(*args: Any, **options: Any) -> Any:
        return bug.function(honest, *args, **options)

    monkeypatch.setattr(bug.where, bug.what, planted)
    with pytest.raises(Violation):
        tell(bug.found_by, PLANTED, shrink=False)
