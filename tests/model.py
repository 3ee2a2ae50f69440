"""A world in which the mutex is stepped through whatever can happen, and what it promises there.

Processes take one lock through `SteppedIO`. Requests and answers get lost or arrive late,
processes are killed, stopped and interrupted, and somebody clears locks, sets the server's clock
or flushes its data. In a world of `AFTER_LOSS = "wait"`, lost data are no excuse. The `Witness`
sits at the server and knows of each command what it found and what it left; it and `World.check`
say what was promised and is not so. What happens in which order is up to test_model.py.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django_redislock.base.clock import deadline
from django_redislock.base.exceptions import (
    LeaseLost,
    LeaseRevoked,
    LockNotAcquired,
    LockUnavailable,
)
from django_redislock.lease import claims
from django_redislock.primitives import mutex
from django_redislock.primitives.contract import Claim, Refusal
from django_redislock.primitives.keys import Keys
from django_redislock.primitives.scripts import GUARDED
from django_redislock.primitives.waiting import DEAF
from tests.memory import CLAIM_WINDOW, SIGN_OF_LIFE, Actor, MemoryServer, Pause, SteppedIO

KEYS = Keys.of("redislock", "invoice:42")
UNDERSTANDS = re.compile(r"m[0-9a-f]+$").search
"""Whether a message to this inbox may say for how long the lock is handed over."""
MINUTE = 60.0
LATEST = 50.0
"""Seconds after which a request that was delayed does not arrive any more. A tombstone lives for
a minute; what is later than that can be a lease of nobody, until its ttl has passed."""


class Violation(AssertionError):
    """A promise was broken."""


class Value(NamedTuple):
    """What is at the lock's key."""

    token: str
    fence: int

    def __str__(self) -> str:
        return f"{self.token[0]} with {self.fence}"


class Place(NamedTuple):
    """When a waiter came. Two places compare if the clock was not set back in between."""

    epoch: int
    number: int


class Waiting(NamedTuple):
    """What the last acquire of a waiter said."""

    clock: float
    inbox: str


class Witness(MemoryServer):
    """A server that looks at each command, and knows what it may do."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.highest = 0
        """The largest fencing token so far."""
        self.fence_known_until = 0.0
        """By the server's clock."""
        self.waiting: dict[str, Waiting] = {}
        self.places: dict[str, Place] = {}
        self.offered: dict[str, Place] = {}
        self.tickets: dict[str, Place] = {}
        """The places that their owners know, and come back to."""
        self.comes_back = ""
        """Who shows its ticket in this very request."""
        """Waiters who know their place, since an answer told them."""
        self.holders: list[str] = []
        """All who ever got the lock, the last one last."""
        self.over: dict[str, str] = {}
        """Tokens whose process was told for good that it does not hold the lock (any more)."""
        self.gave_back: set[str] = set()
        """Tokens whose release found the lock theirs."""
        self.ended: set[str] = set()
        """Tokens that were reinstated for their release."""
        self.knows = ""
        """The holder, unless it was handed the lock and has not confirmed it yet."""
        self.asks_from: str | int = ""
        """The inbox of the process whose release this is, if somebody else waits there."""
        self.cleared: dict[str, float] = {}
        """Holders that an operator has cleared, and when."""
        self.forgotten = ""
        """Who held the lock when the data were lost, until somebody has it (again)."""
        self.came = 0
        self.set_back = 0
        """How often the clock was set back."""
        self.furthest = 0.0
        """How far ahead it has been, by which keys may live longer when it is set back."""
        self.broken = False

    def violation(self, why: str) -> Violation:
        self.broken = True
        return Violation("\n".join([why, *self.log]))

    def say(self, what: str) -> None:
        self.log.append(f"{self.time - 1_700_000_000:9.3f}  {what}")

    @property
    def value(self) -> Value | None:
        value = self.at(KEYS.lock)
        return Value(value[:32], int(value[33:].partition("|")[0])) if value else None

    @property
    def lease_ends(self) -> float:
        """When what is at the key ends by itself, by everybody's time."""
        there = self.at(KEYS.lock) is not None
        return self.ends.get(KEYS.lock, math.inf) - self.ahead if there else self.time

    # Each command.

    def call(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        self.time += 0.000_01  # no two commands are carried out in the same microsecond
        its = {
            "mutex_holder": "",
            "mutex_extend": args[-2:][0],
            "mutex_clear": args[-1],
            "mutex_reinstate": str(args[-3:][0])[:32],
        }
        token = str(its.get(script, args[0]))
        before = self.value
        self.asks_from = args[2] if script == "mutex_release" else ""
        acquires = script.removesuffix(GUARDED) == "mutex_acquire"
        self.comes_back = token if acquires and args[4] else ""
        answer = super().call(script, keys, args)
        script = script.removesuffix(GUARDED)
        after = self.value
        self.say(f"    server: {script} {token[:1]} {args[3:4]} {answer}; {before} -> {after}")
        released = script == "mutex_release" or (script == "mutex_drop" and answer)
        if released and before and before.token == token:
            self.gave_back.add(token)
        if script == "mutex_reinstate" and args[1] and answer[0]:
            self.ended.add(token)
        if script == "mutex_clear" and answer and self.knows == token:
            self.cleared[token] = self.time
        self._answers_truly(script, token, before, after, answer)
        granted = self._changed(script, token, before, after)
        knows = script in ("mutex_acquire", "mutex_reinstate", "mutex_take")
        if knows and after is not None and after.token == token:
            self.knows = token
        self._look_at_queue(script, token, args, answer, granted)
        return answer

    def _answers_truly(
        self, script: str, token: str, before: Value | None, after: Value | None, answer: Any
    ) -> None:
        had = before is not None and before.token == token
        match script:
            case "mutex_acquire":
                true = (answer[0] == 1) == (after is not None and after.token == token)
            case "mutex_take":
                true = (answer is not None) == (after != before)
            case "mutex_release":
                true = token in self.gave_back if answer[0] else not had
            case "mutex_drop":
                true = (answer is not None) == (had and after is None)
            case "mutex_reinstate":
                true = bool(answer[0]) == (after is not None and after.token == token)
            case "mutex_extend":
                true = bool(answer[0]) == had
            case _:
                return
        if not true:
            raise self.violation(f"{script} of {token[0]} was answered {answer}")

    def _changed(
        self, script: str, token: str, before: Value | None, after: Value | None
    ) -> str | None:
        """Whose token the command has put to the key, if it did."""
        if after == before:
            return None
        if before is not None and not (
            script in ("mutex_release", "mutex_drop", "mutex_clear") and before.token == token
        ):
            raise self.violation(f"{script} of {token[0]} took the lock from {before}")
        if after is None:
            return None
        self.forgotten = ""
        if after.token in self.over:
            raise self.violation(f"{after} is a ghost: it was told {self.over[after.token]!r}")
        if script == "mutex_reinstate":
            if after != (self.holders[-1], self.highest):
                raise self.violation(f"{after} is reinstated, and others have held it since")
            return None
        self.holders.append(after.token)
        self._fence_grows(after)
        if after.token != token:
            self._handed_over(after)
        mine = self._place(after.token)
        for other, seen in self.waiting.items():
            if other != after.token and self._reachable(seen) and self._came_before(other, mine):
                raise self.violation(f"{after} got the lock, and {other[0]} had come before")
        return after.token

    def _handed_over(self, after: Value) -> None:
        seen = self.waiting.get(after.token)
        if seen is None:
            raise self.violation(f"{after} was handed a lock that it did not wait for")
        if not self._listens(seen):
            raise self.violation(f"{after} was handed the lock, and nobody listened")
        at_home, since = seen.inbox == self.asks_from, self.clock - seen.clock
        by_message = bool(UNDERSTANDS(seen.inbox)) and seen.inbox in self.listening
        by_message &= 0 <= since < CLAIM_WINDOW
        longest = SIGN_OF_LIFE - since if by_message else CLAIM_WINDOW
        if self.lease_ends - self.time > longest + 0.001 and not at_home:
            raise self.violation(f"{after} was handed the lock for too long")
        self.knows = after.token if at_home or by_message else ""

    def _fence_grows(self, after: Value) -> None:
        """Also when the clock was set back, as long as the server can know the last one. Lost data
        take the memory with them, and then the clock has to have passed it."""
        known = self.clock < self.fence_known_until or self.clock * 1e6 > self.highest + 1
        if after.fence <= self.highest and known:
            raise self.violation(f"the fencing token fell from {self.highest} to {after.fence}")
        self.highest = after.fence
        self.fence_known_until = float("inf")

    def _look_at_queue(
        self, script: str, token: str, args: Sequence[Any], answer: Any, granted: str | None
    ) -> None:
        """Nobody is in it who left, and nobody lost a place who could have been told."""
        if script == "mutex_acquire" and answer[0] in (0, 4):
            self.came += 1
            place = self._place(token) or Place(self.set_back, self.came)
            self.offered[token] = place
            if answer[0] == 4 and args[3]:
                pass  # it has a ticket, and no place yet, if it had none before
            elif args[3]:
                self.waiting[token] = Waiting(self.clock, args[3])
                self.places[token] = place
            else:
                self._leaves(token)
        elif script in ("mutex_acquire", "mutex_release"):
            self._leaves(token)
        if granted is not None:
            self._leaves(granted)
        queue = self.at(KEYS.queue) or {}
        for other, seen in list(self.waiting.items()):
            if other not in queue:
                if self._reachable(seen):
                    raise self.violation(f"{other[0]} lost its place in the queue")
                self._leaves(other)
        for other in queue:
            if other not in self.waiting:
                raise self.violation(f"{other[0]} is in the queue and does not wait")
            if other in self.over:
                raise self.violation(f"{other[0]} waits, and was told {self.over[other]!r}")

    def told_its_place(self, token: str) -> None:
        self.tickets.setdefault(token, self.offered[token])

    def _place(self, token: str) -> Place | None:
        """The one that it has in the queue, or comes back to: the earlier one counts."""
        returns_to = self.tickets.get(token) if token == self.comes_back else None
        known = [place for place in (self.places.get(token), returns_to) if place is not None]
        return min(known, default=None)

    def _leaves(self, token: str) -> None:
        self.waiting.pop(token, None)
        self.places.pop(token, None)

    def _listens(self, seen: Waiting) -> bool:
        return seen.inbox == DEAF or seen.inbox in self.listening

    def _reachable(self, seen: Waiting) -> bool:
        return self._listens(seen) and self.clock - seen.clock < SIGN_OF_LIFE

    def _came_before(self, other: str, mine: Place | None) -> bool:
        """Who was never in the queue comes last."""
        place = self.places[other]
        return mine is None or (place.epoch == mine.epoch and place.number < mine.number)

    # What else happens to a server.

    def set_clock(self, by: float) -> None:
        self._forget()
        self.ahead += by
        self.furthest = max(self.furthest, self.ahead)
        self.set_back += by < 0
        self._forget()

    def flush(self) -> None:
        if self.value is not None:
            self.forgotten = self.value.token
        super().flush()
        self.fence_known_until = 0.0
        self._forget()

    def keeps(self, process: Process) -> bool:
        """Nobody gets a lock that was forgotten before its lease has ended."""
        guard = self.at(KEYS.guard)
        pause_ends = int(guard) / 1e6 + process.claim.ttl if guard else math.inf
        assert process.until is not None
        return self.forgotten == process.claim.token and process.until + self.ahead <= pause_ends

    def _forget(self) -> None:
        """What has run out is lost, also if the clock goes back afterwards. Waiters come back."""
        if self.clock >= self.fence_known_until:
            self.fence_known_until = 0.0
        queue = self.at(KEYS.queue) or {}
        for token in [token for token in self.waiting if token not in queue]:
            self._leaves(token)


class Late(NamedTuple):
    """A request that got no answer, and is still on its way."""

    token: str
    text: str
    sent: float
    arrive: Callable[[], Any]


class Inbox:
    """That of a process, which begins to listen when somebody in it first has to wait, and may
    lose that connection."""

    def __init__(self, server: Witness, name: str, *, listens: bool) -> None:
        self.server = server
        self.name = name
        self.ports: list[Port] = []
        self.began = self.away = self.slow = False
        self.since = 0.0
        """Since when the connection is there."""
        self.messages: list[str] = []
        """Those that are on their way, while it is slow."""
        if listens:
            self.hear()

    def hear(self) -> None:
        """The connection is there (again): everybody looks."""
        self.began, self.away, self.slow = True, False, False
        self.since = self.server.time
        self.messages.clear()
        self.server.listening[self.name] = self.tell
        for port in self.ports:
            if port._token:
                self.tell(port._token)

    def tell(self, message: str) -> None:
        if self.slow:
            self.messages.append(message)
        else:
            self.deliver(message)

    def deliver(self, message: str) -> None:
        for port in self.ports:
            port.tell(message, self.since)

    def go_deaf(self) -> None:
        self.away, self.slow = True, False
        self.messages.clear()
        self.server.listening.pop(self.name, None)


class Port(SteppedIO):
    """That of one thread of a process."""

    def __init__(self, server: Witness, inbox: Inbox) -> None:
        super().__init__(server, inbox.name)
        self.witness = server
        self.box = inbox
        self.neighbours = inbox.ports
        inbox.ports.append(self)
        if inbox.began and not inbox.away:
            server.listening[inbox.name] = inbox.tell
        else:
            del server.listening[inbox.name]

    async def script(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        answer = await super().script(name, keys, args)
        if name.removesuffix(GUARDED) == "mutex_acquire" and answer[0] in (0, 4):
            self.witness.told_its_place(str(args[0]))
        return answer

    async def listen(self, token: str, *, within: float, keys: Keys | None) -> str:
        self._token = token
        if within > 0 and not self.box.began:
            await Pause("listen")
            self.box.hear()
        return self.inbox if self.box.began and not self.box.away else DEAF


class Process:
    """Takes the lock, works, and gives it back, as `Lock` and `Lease` do with the primitive.

    Or one thread of it: those of one process have an inbox in common, and their fate."""

    def __init__(
        self, world: World, name: str, wait: float | None, ttl: float, inbox: Inbox
    ) -> None:
        self.world = world
        self.server = world.server
        self.name = name
        self.wait = wait
        self.io = Port(world.server, inbox)
        self.claim = Claim(
            KEYS,
            token=name * 32,
            ttl=ttl,
            owner=name,
            label="here",
            primitive=mutex,
            guarded=world.after_loss,
        )
        self.claim.renewed = True
        self.main = Actor(name, self.io, self._life())
        self.renewal: Actor | None = None
        self.stopped = False
        self.dead = False
        self.releasing = False
        self.began = self.io.now()
        self.fence = 0
        self.sent = 0.0
        """When the request was sent from which its deadline counts."""
        self.until: float | None = None
        """While it is in the guarded section: its own deadline."""
        self.deadline = 0.0
        self.refusal: Refusal | None = None
        """What a renewal was told, if the lease is lost."""

    def __str__(self) -> str:
        return self.name

    # What it does.

    async def _life(self) -> str:
        try:
            got = await claims.obtain(self.io, self.claim, self.wait)
        except (LockUnavailable, LeaseLost, KeyboardInterrupt) as error:
            self.claim.doubtful |= not isinstance(error, LeaseLost)
            if self.claim.sent:
                await self._withdraw()
            return type(error).__name__
        if isinstance(got, LockNotAcquired):
            if self.claim.doubtful:
                await self._withdraw()
            return "conflict"
        self.claim.granted = got
        self.fence = got.fencing_token
        self._believe(got.sent, self.claim.ttl if got.lives is None else got.lives)
        await Pause("work")
        return await self._release()

    def _believe(self, sent: float, ttl: float) -> None:
        self.sent = sent
        self.until = self.deadline = deadline(sent, ttl)

    def inside(self) -> bool:
        """It works, and its own deadline has not passed."""
        return self.until is not None and self.io.now() < self.until

    async def _release(self) -> str:
        self.releasing = True
        ours = self.inside()
        self.until = None
        while True:
            try:
                refusal = await claims.release(self.io, self.claim)
                lost = self.refusal is not None or self.io.now() >= self.deadline
                if refusal and refusal.forgotten and self.claim.guarded and not lost:
                    refusal = await mutex.release_forgotten(self.io, self.claim, self.deadline)
            except KeyboardInterrupt:
                self.claim.doubtful = True
                await self._withdraw()
                return "KeyboardInterrupt"
            except LockUnavailable:
                if self.io.now() >= self.deadline:
                    return "unknown"
                with contextlib.suppress(KeyboardInterrupt):
                    await self.io.sleep(1.0)  # as the watchdog, which releases it later
                continue
            refusal = self.refusal or refusal
            if refusal is None:
                return "released" if ours else "late"
            if refusal.revoked:
                assert isinstance(refusal.error(KEYS.name), LeaseRevoked)
                return "revoked"
            return "lost" if ours else "late"

    async def _withdraw(self) -> None:
        """The last word, until it is heard or nothing could be held any more."""
        give_up = self.io.now() + self.claim.ttl
        while self.io.now() < give_up:
            try:
                await mutex.release(self.io, self.claim)
                self.server.over[self.claim.token] = "withdrawn"
                return
            except (LockUnavailable, KeyboardInterrupt):
                with contextlib.suppress(KeyboardInterrupt):
                    await self.io.sleep(1.0)

    async def _renew(self, ttl: float) -> None:
        sent = self.io.now()
        try:
            [refusal] = await mutex.extend(self.io_of_renewal, [self.claim], [ttl])
            if refusal is not None and refusal.forgotten and self.claim.guarded:
                self.claim.doubtful = True
                if not self.releasing:
                    [refusal] = await mutex.reinstate(
                        self.io_of_renewal, [self.claim], [ttl], [self.deadline]
                    )
        except LockUnavailable:
            return
        if self.releasing or not self.inside():
            return  # too late: others may have held it since
        if refusal is None:
            self.claim.ttl = ttl
            self._believe(sent, ttl)
        else:
            self.refusal, self.until = refusal, None

    # What is done to it.

    def renew(self, ttl: float) -> None:
        self.io_of_renewal = SteppedIO(self.server, f"watchdog of {self}")
        self.renewal = Actor(f"{self}'s renewal", self.io_of_renewal, self._renew(ttl))

    def actors(self) -> list[Actor]:
        return [actor for actor in (self.main, self.renewal) if actor and not actor.done]

    @property
    def working(self) -> bool:
        return self.main.at == "work"

    @property
    def acquiring(self) -> bool:
        return not self.main.done and not self.working and not self.releasing


class World:
    """A server, the processes that use it, and the requests that are on their way."""

    def __init__(self, *, after_loss: bool = False) -> None:
        self.after_loss = after_loss
        """Whether all of them say `AFTER_LOSS = "wait"`."""
        self.server = Witness()
        self.server.data[KEYS.guard] = "0"  # it has forgotten nothing for long
        self.earlier = False
        """Whether the processes have an earlier version, for which a message is only a hint."""
        self.processes: list[Process] = []
        self.late: list[Late] = []
        self.disaster = -1.0
        """When data were lost, or the clock was set forward: TTLs, places in the queue and
        tombstones of before may be gone."""

    # Who can do something.

    def alive(self) -> list[Process]:
        return [p for p in self.processes if not p.dead and not p.main.done]

    def runnable(self) -> list[Actor]:
        return [
            actor
            for process in self.alive()
            if not process.stopped
            for actor in process.actors()
            if actor.at != "work" and actor.io.runnable()
        ]

    def waiting(self) -> list[Process]:
        return [p for p in self.alive() if p.main.at == "wait" and not p.stopped]

    def working(self) -> list[Process]:
        return [p for p in self.alive() if p.working and not p.stopped]

    def in_flight(self) -> list[Actor]:
        """Those whose request or answer is on its way."""
        return [
            actor
            for process in self.alive()
            if not process.stopped
            for actor in process.actors()
            if actor.at.startswith(("send ", "answer "))
        ]

    # What can happen. Each of them is one line of the story that a violation tells.

    def start(
        self, wait: float | None, ttl: float, *, listens: bool, beside: Process | None = None
    ) -> None:
        """As another thread of a process that is there already, if `beside` is one."""
        number = len(self.processes)
        name = "abcdefghijklmnopqrstuvwxyz"[number]
        if beside is None:
            inbox = Inbox(
                self.server, f"inbox:{'' if self.earlier else 'm'}{number:x}", listens=listens
            )
        else:
            inbox = beside.io.box
        process = Process(self, name, wait, ttl, inbox)
        self.processes.append(process)
        where = f"beside {beside}" if beside else f"listens={listens}"
        self.server.say(f"{process} starts: wait={wait}, ttl={ttl:g}, {where}")
        self.step(process.main)

    def threads(self, process: Process) -> list[Process]:
        """Those of the same process that are alive, this one among them."""
        return [other for other in self.alive() if other.io.box is process.io.box]

    def step(self, actor: Actor) -> None:
        was = actor.at
        actor.step()
        self._moved(actor, was)

    def _moved(self, actor: Actor, was: str) -> None:
        self.server.say(f"{actor.name}: {was or 'begins'} -> {actor.at or actor.result}")
        for process in self.processes:
            if process.main is actor and actor.done:
                self._finished(process)
        self.check()

    def go_on(self, actor: Actor) -> None:
        """Until it sleeps, works or is done."""
        for _ in range(10):
            if actor.done or actor.at == "work" or not actor.io.runnable():
                break
            self.step(actor)

    def renew(self, process: Process, ttl: float) -> None:
        process.renew(ttl)
        assert process.renewal is not None
        self.server.say(f"{process.renewal.name} to {ttl:g} s")
        self.step(process.renewal)

    def time_passes(self, seconds: float) -> None:
        self.server.say(f"{seconds:g} s go by")
        self.server.time += seconds
        self.late = [late for late in self.late if self.server.time - late.sent < LATEST]

    def to_next_waker(self) -> None:
        wakers = [
            actor.io.wake_at
            for process in self.alive()
            if not process.stopped
            for actor in process.actors()
            if actor.io.wake_at is not None
        ]
        if wakers and min(wakers) > self.server.time:
            self.time_passes(min(wakers) - self.server.time)

    def wake(self, process: Process) -> None:
        self.server.say(f"{process} wakes up for nothing")
        self.step(process.main)

    def lose_wake_ups(self) -> None:
        self.server.say("wake-ups are lost")
        for process in self.processes:
            process.io.told.clear()

    def slow_down(self, process: Process) -> None:
        self.server.say(f"messages to {process} take their time")
        process.io.box.slow = True

    def deliver(self, process: Process, *, twice: bool) -> None:
        """The next message that is on its way."""
        message = process.io.box.messages.pop(0)
        for _ in range(1 + twice):
            self.server.say(f"{message} comes to {process}")
            process.io.box.deliver(message)

    def lose_connection(self, process: Process) -> None:
        self.server.say(f"{process} does not hear any more")
        process.io.box.go_deaf()

    def reconnect(self, process: Process) -> None:
        self.server.say(f"{process} hears again")
        process.io.box.hear()

    def fail(self, actor: Actor, *, arrives: bool, passing: bool = True) -> None:
        """The request, or its answer, is lost: the connection fails.

        A request that does not get through at all is one whose connection was refused, and
        nobody is in doubt; else it may arrive later.
        """
        on_its_way = actor.at.startswith("send ")
        if on_its_way and arrives:
            self._delay(actor)
        self.server.say(f"{actor.name}: {actor.at} fails{', for now' if arrives else ''}")
        was, actor.io.request = actor.at, None
        doubtful = arrives or not on_its_way
        actor.throw(LockUnavailable("lost", doubtful=doubtful, passing=passing or doubtful))
        self._moved(actor, was)

    def _delay(self, actor: Actor) -> None:
        if actor.io.request is not None:
            text = f"{actor.at} of {actor.name}"
            token = actor.name[0] * 32
            self.late.append(Late(token, text, self.server.time, actor.io.request))

    def arrive(self, late: Late) -> None:
        self.late.remove(late)
        self.server.say(f"{late.text} arrives late")
        late.arrive()

    def kill(self, process: Process, *, arrives: bool) -> None:
        for thread in self.threads(process):
            self.server.say(f"{thread} is killed")
            for actor in thread.actors():
                if arrives:
                    self._delay(actor)
                actor.kill()
            thread.dead = True
            thread.until = None

    def interrupt(self, process: Process, *, arrives: bool) -> None:
        """KeyboardInterrupt, or the cancellation of a task."""
        self.server.say(f"{process} is interrupted at {process.main.at}")
        if arrives:
            self._delay(process.main)
        was, process.io.request, process.io.wake_at = process.main.at, None, None
        process.main.throw(KeyboardInterrupt())
        self._moved(process.main, was)

    def stop(self, process: Process) -> None:
        for thread in self.threads(process):
            self.server.say(f"{thread} is stopped")
            thread.stopped = True

    def resume(self, process: Process) -> None:
        for thread in self.threads(process):
            self.server.say(f"{thread} goes on")
            thread.stopped = False

    def clear(self, token: str) -> None:
        self.server.say(f"an operator clears {token[0]}")
        self.server.call("mutex_clear", KEYS.mutex(token), ["word", "eva", "stuck", token])

    def set_clock(self, by: float) -> None:
        self.server.say(f"the server's clock is set by {by:+g} s")
        self.server.set_clock(by)
        if by > 0:
            self._disaster()

    def flush(self) -> None:
        self.server.say("FLUSHDB")
        if self.after_loss:
            # A withdrawn request that arrives after its tombstone was lost is not refused.
            self.late = [late for late in self.late if not self.server.at(KEYS.gone(late.token))]
        self.server.flush()
        if not self.after_loss:
            self._disaster()

    def _disaster(self) -> None:
        self.disaster = self.server.time
        self.late.clear()  # since their tombstones may be gone

    # What is promised.

    def excused(self, process: Process) -> bool:
        """Its lease may have ended early, since it was asked for before a disaster."""
        cleared = self.server.cleared.get(process.claim.token)
        return process.sent <= self.disaster or cleared is not None

    def check(self) -> None:
        """At any time."""
        value = self.server.value
        inside = [p for p in self.processes if p.inside() and not self.excused(p)]
        if len(inside) > 1:
            raise self.server.violation(f"{' and '.join(map(str, inside))} are both inside")
        for process in inside:
            if value is None and self.after_loss and self.server.keeps(process):
                continue  # it reinstates its lease
            if value != (process.claim.token, process.fence):
                raise self.server.violation(
                    f"{process} believes in its lease with {process.fence}; at the server: {value}"
                )
            assert process.until is not None
            if process.until > self.server.lease_ends:
                # Nobody else is inside yet, but there will be if nothing else happens.
                raise self.server.violation(f"{process} believes in more than the server's lease")
        if value is not None and value.token in self.server.over:
            raise self.server.violation(
                f"{value} holds the lock and was told {self.server.over[value.token]!r}"
            )

    def _finished(self, process: Process) -> None:
        """It was told how it ended: was that so?"""
        token, told = process.claim.token, process.main.result
        server, excused = self.server, self.excused(process)
        released = token in server.gave_back
        if told == "conflict":
            if process.wait is None:
                raise server.violation(f"{process} gave up and was to wait for ever")
            if server.time < process.began + process.wait:
                raise server.violation(f"{process} gave up early")
        lived = released or token in server.ended
        if told == "released" and not lived and not process.claim.release_lost:
            raise server.violation(f"{process} was told released, and had lost the lock")
        if told == "lost" and released:
            raise server.violation(f"{process} was told lost, and had the lock until then")
        if told == "lost" and not excused and server.time < process.deadline:
            raise server.violation(f"{process} lost the lock and nothing had happened to it")
        if told in ("revoked", "LeaseRevoked") and token not in server.cleared:
            raise server.violation(f"{process} was told cleared, and nobody did")
        if (
            told == "lost"
            and token in server.cleared
            and max(self.disaster, server.time - MINUTE) < server.cleared[token]
        ):
            raise server.violation(f"{process} was not told that it was cleared")
        if told in ("released", "lost", "late", "revoked") or not process.claim.doubtful:
            server.over[token] = told

    def drain(self) -> None:
        """Faults end, and everybody goes on, in turn: then everybody comes to an end, and when
        the time of all leases has passed, nothing is left."""
        server = self.server
        if server.broken:
            return
        server.say("from here on nothing happens to anybody")
        for process in self.alive():
            process.stopped = False
            while process.io.box.messages:
                self.deliver(process, twice=False)
            process.io.box.slow = False
            if process.io.box.away:
                process.io.box.hear()
        for late in self.late.copy():
            self.arrive(late)
            self.check()
        pause = max(p.claim.ttl for p in self.processes) if self.after_loss else 0.0
        patience = max(server.lease_ends, server.time) + pause + 15.0
        # Many, since a clock that was set back lets a lease live for minutes.
        for _ in range(10_000):
            actors = self.runnable() + [process.main for process in self.working()]
            for actor in actors:
                self.step(actor)
            if not actors:
                self.to_next_waker()
            if not self.alive() or server.time > patience:
                break
        if self.alive():
            raise server.violation(f"{', '.join(map(str, self.alive()))}: waits for ever")
        self._nothing_left()

    def _nothing_left(self) -> None:
        server = self.server
        gone = {p.claim.token for p in self.processes if p.dead or self._abandoned(p)}
        if any({*(server.at(key) or ())} - gone for key in (KEYS.queue, KEYS.waiters)):
            raise server.violation("the queue is not empty when everybody is done")
        value = server.value
        if value is not None and value.token not in gone:
            raise server.violation(f"{value} is left when everybody is done")
        server.time = max(server.lease_ends, server.time) + 0.001
        if server.value is not None:
            raise server.violation("the lock outlives its lease")
        server.time += MINUTE + server.furthest - server.ahead
        if server.at(KEYS.queue) or server.at(KEYS.waiters):
            raise server.violation("the queue outlives everybody")

    def _abandoned(self, process: Process) -> bool:
        """It could not say its last word for as long as a lease."""
        return process.main.result in ("unknown", "LockUnavailable", "KeyboardInterrupt") and (
            process.claim.token not in self.server.over
        )
