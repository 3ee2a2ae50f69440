"""A task with its rules: what happens when it is queued, and when a worker is given it."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from django.db import connections

from ..base import people, process, tokens
from ..base.background import Background
from ..base.callables import call, written
from ..base.clock import now
from ..base.exceptions import LeaseLost, LockError, LockUnavailable
from ..lease import claims, notes
from ..lease.holds import Hold
from ..lease.lease import Lease
from ..primitives import record
from ..primitives.contract import Claim, Grant, run, too_late
from ..primitives.keys import Keys
from ..primitives.work import SHORT, TICKET, NotBegun, TaskConflict
from ..settings import conf
from ..transport.ports import SyncPort
from ..transport.server import server_of
from .rules import QUEUED_FOR, Named, Rule, Uniqueness

logger = logging.getLogger("django_redislock")

PAUSE = 0.005, 0.1
"""Seconds after which another call looks again: for the first time, and at most."""
MOST = 64 * 1024
"""Bytes of a message, or of arguments, that are kept in Redis."""

Send = Callable[[], tuple[Any, str]]
"""Sends a message to its queue, and returns its handle and its id."""


class Delivery(NamedTuple):
    """A message that a worker was given."""

    id: str
    """Each attempt of a task has its own, and a repeated delivery has the same."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    message: Any
    """All that is needed to send the message again."""


class Queue(Protocol):
    """A task queue. `register` makes another one known."""

    renamed: bool = False
    """Whether a message gets a new id when it is sent again."""

    def knows(self, task: object) -> bool:
        """Return whether this is a task of this queue."""

    def function(self, task: Any) -> Callable[..., Any]:
        """Return the function that the task runs."""

    def guard(self, task: Any, gate: Guarded) -> Any:
        """Let each enqueue of `task` go through `gate.enqueue`, and each run through
        `gate.run`. Returns what stands in the place of the task."""

    def send_again(self, task: Any, message: Any, seconds: float = 0.0) -> str:
        """Send the message of a delivery, to be begun after so many seconds, and not through
        `gate.enqueue`. Returns its id."""

    def handle(self, task: Any, id: str) -> Any:
        """Return what a caller gets of the task with this id."""

    def dump(self, task: Any, value: Any) -> bytes:
        """Return a message, or arguments, by the serialiser of the queue."""

    def load(self, task: Any, text: bytes) -> Any:
        """Return the value of `dump`."""


_inside: ContextVar[tuple[tuple[Guarded, str], ...]] = ContextVar("redislock_tasks", default=())
"""The messages whose functions run here, each with its task. A function that calls its own task as
a function runs no other message; one that queues it at an immediate backend does."""

known: dict[str, Guarded] = {}
"""By the dotted path of the function."""


def _said(names: Sequence[Named]) -> str:
    """Return what is noted of the names of a message: each without its scope, and with it."""
    return json.dumps([[one.name, one.keys.name] for one in names])


class Guarded:
    """A task and its rules."""

    task: Any = None
    """What stands in the place of the task."""
    unique: Uniqueness | None = None
    """That one of its rules which lets only one wait."""
    queued_for = QUEUED_FOR
    """Seconds that a message may wait in its queue."""

    def __init__(self, queue: Queue, function: Callable[..., Any]) -> None:
        self.queue, self.function = queue, function
        self.path = people.dotted_path(written(getattr(function, "__func__", function)))
        self.rules: list[Rule] = []
        """The innermost first."""
        known[self.path] = self

    def add(self, rule: Rule) -> None:
        """Let a rule hold, too. Raises `TypeError` for a second `unique`."""
        if isinstance(rule, Uniqueness):
            if self.unique is not None:
                raise TypeError(f"{self.path} has two names by @unique: leave one of them out")
            self.unique, self.queued_for = rule, rule.queued_for
        self.rules.append(rule)

    # Enqueueing.

    def enqueue(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        send: Send,
        *,
        id: str | None = None,
        again: bool = False,
    ) -> Any:
        """Claim the name of a call, and `send` it, which returns its handle and its id.

        `id` is the id that it is going to have, if that is known. `again`: it is sent in any case.
        With an id it is a retry, which claims its name if that is free. Without, others count on
        this very message.

        Returns the handle, or what `on_conflict` says. Raises `LockUnavailable`, `TaskConflict`.
        """
        if self.unique is not None and not again:
            text = self.queue.dump(self.task, [args, kwargs]) if self.unique.settle else b""
            if len(text) > MOST:
                raise self._too_large(text)
            return Call(self, self._named(args, kwargs), send).queue(id, text)
        names = [] if again else self._named(args, kwargs)
        handle, its = send()
        with suppress(LockUnavailable):  # a retry may be due to that
            names = names or self._names(its, args, kwargs)
            self.note(names, its)
            if again and self.unique is not None and id is not None:
                Call(self, names, send).claim(id, self.unique.queued_for, retry=True)
        return handle

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Named]:
        return [one.named(args, kwargs) for one in self.rules]

    # Notes: the names of a message, by its id. The worker may be in another scope, or have another
    # template.

    def note(self, names: Sequence[Named], id: str) -> None:
        """Note the names of a message. Raises `LockUnavailable`."""
        if self.unique is None and all(one.name == one.keys.name for one in names):
            return
        port, key = SyncPort(server_of(self.rules[0].using)), self._noted(id).record
        lives = round(self.queued_for * 1000)
        run(port.script("record_set", [key], [tokens.word(), _said(names), lives]))

    def _noted(self, id: str) -> Keys:
        """Return the keys of a message. All attempts have the same."""
        return Keys.of(conf.prefix(), f"message:{self.path}:{id.partition(':')[0]}")

    def _names(self, id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Named]:
        """Return the rules for the names that were noted, or else for those that the arguments
        have here."""
        noted = run(record.read(SyncPort(server_of(self.rules[0].using)), self._noted(id)))
        return self.of(noted) or self._named(args, kwargs)

    def of(self, said: str | bytes | None) -> list[Named]:
        """Return the rules for names that were noted; none if these are others."""
        with suppress(ValueError, TypeError):
            names = json.loads(said)  # type: ignore[arg-type]
            return [rule.of(*its) for rule, its in zip(self.rules, names, strict=True)]
        return []

    # Running.

    def run(
        self,
        delivery: Delivery,
        function: Callable[..., Any],
        instead: Callable[[NotBegun], Any],
    ) -> Any:
        """Run the function of a message that a worker was given, under the permits of all rules.
        If it can't begin now, return what `instead` makes of the reason.

        Raises `LockUnavailable`, for the retry of the queue; and what the function raises.
        """
        id, args, kwargs, message = delivery
        if (self, id) in _inside.get():
            return function(*args, **kwargs)
        names = self._names(id, args, kwargs)
        text = self.queue.dump(self.task, message)
        parts = [self.path, _said(names), base64.b64encode(text).decode()]
        kept = b"" if len(text) > MOST else json.dumps(parts).encode()
        if not kept and any(rule.recover for rule in self.rules):
            raise self._too_large(text)
        try:
            with ExitStack() as stack:
                # That of `unique` is the last one, since it frees the claim.
                for named in sorted(names, key=lambda one: one.rule is self.unique):
                    its = named.work
                    its.id, its.message, its.renamed = id, kept, self.queue.renamed
                    self._begin(named, stack)
                    if its.latest is not None:
                        args, kwargs = self.queue.load(self.task, its.latest)
                stack.callback(_inside.reset, _inside.set((*_inside.get(), (self, id))))
                return call(function, tuple(args), kwargs)
        except NotBegun as start:
            if start.why == "early":
                self.send_again(id, message, names, start.seconds)
            elif start.why == "parked" and not kept:
                raise self._too_large(text) from start
            elif start.why != "replaced":
                # A duplicate is kept as well, until the run that it met has ended.
                if start.why == "parked":
                    named.tell("parked", id)
                where = named.plan.server.address, named.keys.lock
                upkeep().add(where, lambda: sweep(named).left > 0, named.plan.ttl)
            return instead(start)
        finally:
            for named in names:
                send_promoted(named)

    def _begin(self, named: Named, stack: ExitStack) -> None:
        """Take a permit until the end of `stack`. Raises `NotBegun`."""
        plan, me = named.plan, people.holder()
        text = people.clean(f"{self.path} {named.work.id}")
        claim = Claim(named.keys, tokens.new(), plan.ttl, people.owner(me), text, named.work)

        def hold(grant: Grant) -> None:
            notes.refuse_poisoned(claim, plan.policy)
            try:
                stack.enter_context(Lease(plan.server, claim, grant, plan.policy, Hold(me)))
            except LeaseLost:
                raise too_late(claim) from None

        port = SyncPort(plan.server, terms=plan.terms)
        run(claims.acquire(port, plan.server, claim, 0.0, hold))

    def _too_large(self, text: bytes) -> ValueError:
        return ValueError(
            f"a message of {self.path} has {len(text)} bytes, and Redis keeps up to {MOST}: "
            f"pass the key of a row, or of a file, instead of its content"
        )

    def send_again(
        self, id: str, message: Any, names: Sequence[Named], seconds: float = 0.0
    ) -> None:
        """Send a message that was not begun, and note its names anew."""
        new_id = self.queue.send_again(self.task, message, seconds)
        self.note(names, new_id)
        for named in names:
            named.confirm(id, new_id, self.queued_for)


@dataclass
class _Commit:
    """That of a transaction, for the calls of one name: one task sees what all of them want."""

    handle: Any
    """That of the first call, which is the one that is queued."""
    ticket: str = ""
    """Of the last call that was queued, if it has come."""


_commits: WeakValueDictionary[tuple[object, str], _Commit] = WeakValueDictionary()
"""By connection and name. Only the calls that wait for a commit have references to it."""


class Call:
    """A call of a task that is unique."""

    def __init__(self, guarded: Guarded, names: Sequence[Named], send: Send) -> None:
        self.guarded, self.names, self.send = guarded, names, send
        self.named = next(one for one in names if isinstance(one.rule, Uniqueness))
        self.rule: Any = self.named.rule
        self.says = f"{people.owner(people.holder())}|{people.clean(people.of_caller())}"

    def queue(self, id: str | None, text: bytes) -> Any:
        """Claim the name and send the message, now or when the transaction commits. Returns the
        handle, or what `on_conflict` says."""
        ticket = TICKET + tokens.word()
        connection = connections[self.rule.database]
        if not connection.in_atomic_block:
            claimed = id or ticket
            conflict = self.claim(claimed, SHORT, text)
            return self._send(claimed) if conflict is None else self._instead(conflict)

        # A task that begins before the commit does not see what the transaction writes, and one
        # that waits for the commit may never come. So nothing is decided before.
        conflict = self._ask("", 0.0)
        if conflict is not None and conflict.sent and not self._replaces(conflict):
            handle = self._instead(conflict)
        else:
            handle = None if id is None else self.guarded.queue.handle(self.guarded.task, id)
        where, replaces = (connection, self.named.keys.lock), self.rule.on_conflict == "replace"
        commit = _commits.get(where)
        if commit is None or commit.ticket:
            commit = _commits[where] = _Commit(handle)

        def committed() -> None:
            if commit.ticket and not replaces and not text:
                self.named.tell("coalesced", commit.ticket)
                return
            commit.ticket = ticket
            conflict = None
            with suppress(LockUnavailable):  # it is too late for that
                conflict = self.claim(ticket, SHORT, text)
            if conflict is None:
                self._send(ticket)

        connection.on_commit(committed)
        return handle if replaces else commit.handle

    def claim(
        self, id: str, lives: float, text: bytes = b"", *, retry: bool = False
    ) -> TaskConflict | None:
        """Claim the name, if it is free. A `retry` may come while its own attempt runs. Raises
        `LockUnavailable`."""
        ask: Callable[..., TaskConflict | None] = partial(self._ask, id, lives, text, retry=retry)
        conflict = ask()
        pause, longest = PAUSE
        # Its caller may be killed, or its queue refuse it. Then nobody may count on it.
        while conflict is not None and not (conflict.sent or retry):
            time.sleep(pause)
            conflict, pause = ask(), min(2 * pause, longest)
        if conflict is not None and not retry and self._replaces(conflict):
            replaced, conflict = conflict, ask(over=conflict.id)
            if conflict is None:
                self.named.tell("replaced", replaced.id)
        if conflict is None:
            self.named.tell("claimed", id)
        elif not retry:
            self.named.tell("coalesced", conflict.id)
        return conflict

    def _ask(
        self, id: str, lives: float, text: bytes = b"", *, over: str = "", retry: bool = False
    ) -> TaskConflict | None:
        named, rule = self.named, self.rule
        its = named.work.claim(
            named.port,
            named.keys,
            id,
            self.says,
            lives=lives,
            alone=rule.alone and not retry,
            settle=rule.settle if text else None,
            message=text,
            over=over,
            sent=retry,
        )
        try:
            return run(its)
        finally:
            send_promoted(named)

    def _replaces(self, conflict: TaskConflict) -> bool:
        return not conflict.runs and self.rule.on_conflict == "replace"

    def _instead(self, conflict: TaskConflict) -> Any:
        """Return what a call gets that queues nothing, or raise the conflict."""
        if self.rule.on_conflict == "raise":
            raise conflict
        if self.rule.on_conflict == "skip" or not conflict.id:
            return None
        return self.guarded.queue.handle(self.guarded.task, conflict.id)

    def _send(self, claimed: str) -> Any:
        """Send a message whose name was claimed, and let its claim live on."""
        known = not claimed.startswith(TICKET)
        try:
            if known:
                self.guarded.note(self.names, claimed)
            handle, id = self.send()
        except BaseException:
            with suppress(LockUnavailable):  # then it ends by itself
                self.named.confirm(claimed, "", SHORT)
            raise
        try:
            if not known:
                self.guarded.note(self.names, id)
            self.named.confirm(claimed, id, self.rule.queued_for)
        except LockUnavailable as error:
            logger.warning("The task %s is queued, and keeps its name only shortly: %s", id, error)
        return handle


def unpacked(text: bytes) -> tuple[Guarded, Any, list[Named]]:
    """Return the task of a parked message, the message, and its names, unless the task has others
    now. Raises `LookupError` if this process does not know the task."""
    path, said, body = json.loads(text)
    if path not in known:
        with suppress(ImportError):
            import_module(path.rpartition(".")[0])
    if path not in known:
        raise LookupError(f"{path} is no task with @unique or @limited in this process")
    guarded = known[path]
    return guarded, guarded.queue.load(guarded.task, base64.b64decode(body)), guarded.of(said)


def send_promoted(named: Named) -> None:
    """Send the messages that requests for a name have promoted. One that can't be sent is the next
    one again after ten seconds."""
    its = named.work
    if its.healed:
        named.tell("healed")
    promoted, its.promoted, its.healed = its.promoted, [], 0
    for id, text in promoted:
        try:
            guarded, message, names = unpacked(text)
            guarded.send_again(id, message, names or [named])
        except Exception:
            logger.exception("The parked task %s of %r could not be sent", id, named.name)
        else:
            named.tell("promoted", id)


class Swept(NamedTuple):
    """What came of a sweep: numbers of messages."""

    healed: int
    promoted: int
    left: int
    """They are still parked."""


def sweep(named: Named) -> Swept:
    """Let parked messages of a name go on whose permits are free. Raises `LockUnavailable`."""
    left = run(named.work.sweep(named.port, named.keys))
    swept = Swept(named.work.healed, len(named.work.promoted), left)
    send_promoted(named)
    return swept


# What a process does about the tasks that it has parked.
#
# A name for which this process has parked a message is swept once in each ttl, by one thread,
# until none is parked there: the holder of the permit may be killed, and no other task of that
# name begin or end.


LONGEST = 3600.0
"""Seconds that the thread rests at most."""


class Chore(NamedTuple):
    sweep: Callable[[], bool]
    """Returns whether it has to be done again."""
    every: float
    due: float


class Upkeep:
    """The names that a process looks after."""

    def __init__(self) -> None:
        self._chores: dict[tuple[str, str], Chore] = {}
        """By the address of a server and the key of a lock."""
        self._wake = threading.Event()
        """Set when there is one more."""
        self._background = Background(self._run, "redislock-tasks")

    def add(self, key: tuple[str, str], sweep: Callable[[], bool], every: float) -> None:
        """Call `sweep` every so many seconds from now on, until it returns False."""
        # Also if it is to be called earlier: then the lease that it waits for may still live.
        self._chores[key] = Chore(sweep, every, now() + every)
        self._background.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            for key, its in [*self._chores.items()]:
                if its.due <= now():
                    # First: what is parked from now on adds it again.
                    newest = self._chores.pop(key)
                    if newest is not its:
                        self._chores.setdefault(key, newest)
                    elif _again(its.sweep):
                        self._chores.setdefault(key, its._replace(due=now() + its.every))
            due = min((its.due for its in self._chores.values()), default=now() + LONGEST)
            self._wake.wait(max(0.0, due - now()))
            self._wake.clear()


def _again(sweep: Callable[[], bool]) -> bool:
    """Call it. Return whether it has to be done again, as after an error."""
    try:
        return sweep()
    except Exception as error:
        expected = isinstance(error, LockError)
        logger.warning("Tasks could not be looked after now: %s", error, exc_info=not expected)
        return True


_of_this_process: dict[str, Upkeep] = {}


def upkeep() -> Upkeep:
    """Return that of this process."""
    process.notice_fork()
    # Two threads may each make one, but both use the one that was stored first.
    return _of_this_process.get("") or _of_this_process.setdefault("", Upkeep())


process.in_child(_of_this_process.clear)  # the thread stayed in the parent
