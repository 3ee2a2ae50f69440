"""A task with its rules: what happens when it is queued, and when a worker is given it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

from ..base import label, tokens
from ..base.callables import written
from ..base.exceptions import LockError, LockUnavailable
from ..base.label import dotted_path
from ..lease import claims
from ..lease.holds import Hold
from ..lease.lease import Lease
from ..lease.lock import call
from ..lease.transactions import at_end
from ..primitives import record, work
from ..primitives.contract import Claim, run
from ..primitives.keys import Keys
from ..primitives.work import SHORT, TICKET, Conflict, Parked, Start, Started, Work
from ..settings import conf
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of
from .events import What, tell
from .queue import MOST, Delivery, Queue
from .rules import QUEUED_FOR, Named, Rule, Uniqueness
from .upkeep import upkeep

logger = logging.getLogger("django_redislock")

T = TypeVar("T")

_sending_again: ContextVar[bool] = ContextVar("redislock_sending_again", default=False)
"""A message is sent again here, so its enqueue claims nothing."""
_inside: ContextVar[tuple[Guarded, ...]] = ContextVar("redislock_inside_tasks", default=())
"""The tasks whose functions run here. A function that calls its own task as a function runs no
other message."""

Send = Callable[[], tuple[Any, str]]
"""Sends a message to its queue, and returns its handle and its id."""

Said = list[list[str]]
"""The names of a message: each without its scope, and with it."""

_known: dict[str, Guarded] = {}
"""By the dotted path of the function."""


def _said(names: Sequence[Named]) -> Said:
    return [[one.name, one.keys.name] for one in names]


def guarded_by(task: object) -> Guarded | None:
    """Return the rules that a task has already."""
    return next((one for one in _known.values() if one.task is task), None)


class Guarded:
    """A task and its rules."""

    task: Any = None
    """What stands in the place of the task."""

    def __init__(self, queue: Queue, function: Callable[..., Any]) -> None:
        self.queue, self.function = queue, function
        self.path = dotted_path(written(getattr(function, "__func__", function)))
        self.rules: list[Rule] = []
        """The innermost first."""
        _known[self.path] = self

    def add(self, rule: Rule) -> None:
        """Let a rule hold, too. Raises `TypeError` for a second `unique`."""
        if self._unique is not None and isinstance(rule, Uniqueness):
            raise TypeError(f"{self.path} has two names by @unique: leave one of them out")
        self.rules.append(rule)

    @property
    def _unique(self) -> Uniqueness | None:
        return next((one for one in self.rules if isinstance(one, Uniqueness)), None)

    @property
    def settles(self) -> bool:
        """Whether a message may have to wait."""
        return self._unique is not None and self._unique.settle is not None

    @property
    def queued_for(self) -> float:
        """Seconds that a message may wait in its queue."""
        return QUEUED_FOR if self._unique is None else self._unique.queued_for

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
        rule = self._unique
        if _sending_again.get():
            return send()[0]
        if again:
            handle, its = send()
            with suppress(LockUnavailable):  # the retry may be due to that
                names = run(self._names(SyncPort, its, args, kwargs))
                self._note(_said(names), its)
                if rule is not None and id is not None:
                    Call(self, rule, names, send).claim(id, rule.queued_for, retry=True)
            return handle
        names = [one.named(args, kwargs) for one in self.rules]
        if rule is not None:
            text = b"" if rule.settle is None else self.queue.dump(self.task, args, kwargs)
            if len(text) > MOST:
                raise self._too_large(text)
            return Call(self, rule, names, send).queue(id, text)
        handle, its = send()
        self._note(_said(names), its)
        return handle

    # Notes: the names of a message, by its id. The worker may be in another scope, or have another
    # template.

    def _note(self, said: Said, id: str) -> None:
        if self._unique is None and all(name == scoped for name, scoped in said):
            return
        port, key = SyncPort(server_of(self.rules[0].using)), self._noted(id).record
        lives = round(self.queued_for * 1000)
        run(port.script("record_set", [key], [tokens.word(), json.dumps(said).encode(), lives]))

    def _noted(self, id: str) -> Keys:
        """Return the keys of a message. All attempts have the same."""
        return Keys.of(conf.prefix(), f"message:{self.path}:{id.partition(':')[0]}")

    async def _names(
        self,
        port_type: type[SyncPort | AsyncPort],
        id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Named]:
        """Return the rules for the names that were noted, or else for those that the arguments
        have here."""
        port = port_type(server_of(self.rules[0].using))
        noted = await record.read(port, self._noted(id))
        if noted is not None:
            with suppress(ValueError, TypeError):
                said = json.loads(noted)
                return [
                    rule.noted(name, scoped)
                    for rule, (name, scoped) in zip(self.rules, said, strict=True)
                ]
        return [rule.named(args, kwargs) for rule in self.rules]

    # Running.

    def run(
        self, delivery: Delivery, function: Callable[..., Any], instead: Callable[[Start], Any]
    ) -> Any:
        """Run the function of a message that a worker was given, under the permits of all rules.
        If it can't begin now, return what `instead` makes of the reason.

        Raises `LockUnavailable`, for the retry of the queue; and what the function raises.
        """
        if self in _inside.get():
            return function(*delivery.args, **delivery.kwargs)
        attempt = Attempt(self, delivery)
        try:
            begun = run(attempt.begin(SyncPort))
            if not begun:
                return instead(attempt.start)
            with ExitStack() as stack:
                for lease in attempt.leases:
                    stack.enter_context(lease)
                with _set(_inside, (*_inside.get(), self)):
                    return call(function, attempt.args, attempt.kwargs)
        finally:
            attempt.send_promoted()

    async def arun(
        self, delivery: Delivery, function: Callable[..., Any], instead: Callable[[Start], Any]
    ) -> Any:
        """`run` for a coroutine function."""
        if self in _inside.get():
            return await function(*delivery.args, **delivery.kwargs)
        attempt = Attempt(self, delivery)
        try:
            begun = await attempt.begin(AsyncPort)
            if not begun:
                return await sync_to_async(instead)(attempt.start)
            async with AsyncExitStack() as stack:
                for lease in attempt.leases:
                    await stack.enter_async_context(lease)
                with _set(_inside, (*_inside.get(), self)):
                    return await function(*attempt.args, **attempt.kwargs)
        finally:
            await sync_to_async(attempt.send_promoted)()

    # Parking.

    def packed(self, message: bytes, names: Sequence[Named]) -> bytes:
        """Return what is parked of a message: any process can send it again. "": it is too large
        for that."""
        if len(message) > MOST:
            if any(rule.recover for rule in self.rules):
                raise self._too_large(message)
            return b""
        body = base64.b64encode(message).decode()
        return json.dumps([self.path, _said(names), body]).encode()

    def _too_large(self, text: bytes) -> ValueError:
        return ValueError(
            f"a message of {self.path} has {len(text)} bytes, and Redis keeps up to {MOST}: "
            f"pass the key of a row, or of a file, instead of its content"
        )

    def send_again(self, message: bytes, names: Said) -> str:
        """Send a message that was parked, and note its names anew. Returns its id."""
        with _set(_sending_again, True):
            id = self.queue.send_again(self.task, message)
        self._note(names, id)
        return id

    def send_later(self, delivery: Delivery, send: Callable[[], str]) -> None:
        """Send a message that is not due, with a delay. Its claim goes on with its id."""
        with _set(_sending_again, True):
            id = send()
        rule = self._unique
        if rule is not None and id != delivery.id:
            names = run(self._names(SyncPort, *delivery[:3]))
            named = next(one for one in names if one.rule is rule)
            self._note(_said(names), id)
            port = SyncPort(named.plan.server)
            run(work.confirm(port, named.keys, delivery.id, id, rule.queued_for))


class Call:
    """A call of a task that is unique."""

    def __init__(
        self, guarded: Guarded, rule: Uniqueness, names: Sequence[Named], send: Send
    ) -> None:
        self._guarded, self._rule, self._names, self._send_it = guarded, rule, names, send
        self._named = next(one for one in names if one.rule is rule)
        self._port, self._keys = SyncPort(self._named.plan.server), self._named.keys

    def queue(self, id: str | None, text: bytes) -> Any:
        """Claim the name, and send the message, now or when the transaction commits. Or return
        what `on_conflict` says."""
        connection = connections[self._rule.database]
        later = connection.in_atomic_block
        claimed = TICKET + tokens.word() if later or id is None else id
        conflict = self.claim(claimed, SHORT, text, replace=self._rule.on_conflict == "replace")
        if conflict is not None:
            return self._settle(conflict)
        if not later:
            return self._send(claimed)
        upkeep().until_commit(self._named.plan.server, self._keys, claimed)
        at_end(
            connection,
            committed=partial(self._committed, claimed),
            dropped=partial(upkeep().undo, claimed),
        )
        return None if id is None else self._guarded.queue.handle(self._guarded.task, id)

    def claim(
        self,
        id: str,
        lives: float,
        text: bytes = b"",
        *,
        replace: bool = False,
        retry: bool = False,
    ) -> Conflict | None:
        """Claim the name, if it is free. A `retry` may come while its own attempt runs. Raises
        `LockUnavailable`."""
        upkeep().undo_dropped()
        plan, rule = self._named.plan, self._rule
        its = Work(id, plan.policy.limit or 1)
        ask = partial(
            its.claim,
            self._port,
            self._keys,
            f"{label.owner(label.holder())}|{label.clean(label.of_caller())}",
            lives=lives,
            alone=rule.alone and not retry,
            settle=rule.settle if text else None,
            message=text,
        )
        try:
            conflict = run(ask())
            if replace and conflict and not (conflict.runs or conflict.id.startswith(TICKET)):
                replaced, conflict = conflict, run(ask(over=conflict.id))
                if conflict is None:
                    self._tell("replaced", replaced.id)
        finally:
            send_promoted(self._named, its, self._guarded.queued_for)
        if conflict is None:
            self._tell("claimed", id)
        return conflict

    def _tell(self, what: What, id: str) -> None:
        tell(what, self._named.name, self._named.plan.policy.using, id)

    def _settle(self, conflict: Conflict) -> Any:
        self._tell("coalesced", conflict.id)
        if self._rule.on_conflict == "raise":
            raise conflict.error(self._named.name)
        if self._rule.on_conflict == "skip" or conflict.id.startswith(TICKET):
            return None
        return self._guarded.queue.handle(self._guarded.task, conflict.id)

    def _send(self, claimed: str) -> Any:
        """Send a message whose name was claimed, and let its claim live on."""
        known, note = not claimed.startswith(TICKET), self._guarded._note
        try:
            if known:
                note(_said(self._names), claimed)
            handle, id = self._send_it()
        except BaseException:
            with suppress(LockUnavailable):  # then it ends by itself
                run(work.confirm(self._port, self._keys, claimed, "", SHORT))
            raise
        try:
            if not known:
                note(_said(self._names), id)
            run(work.confirm(self._port, self._keys, claimed, id, self._rule.queued_for))
        except LockUnavailable as error:
            logger.warning("The task %s is queued, and keeps its name only shortly: %s", id, error)
        return handle

    def _committed(self, claimed: str) -> None:
        upkeep().committed(claimed)
        self._send(claimed)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def unpacked(message: bytes) -> tuple[Guarded, Said, bytes]:
    """Return the task of a parked message, its names, and the message. Raises `LookupError` if
    this process does not know the task."""
    path, names, body = json.loads(message)
    if path not in _known:
        module = path
        while module:
            module = module.rpartition(".")[0]
            with suppress(ImportError):
                import_module(module)
                break
    if path not in _known:
        raise LookupError(f"{path} is no task with @unique or @limited in this process")
    return _known[path], names, base64.b64decode(body)


def send_promoted(named: Named, its: Work, lives: float) -> None:
    """Send the messages that a request has promoted. One that can't be sent is the next one again
    after ten seconds."""
    using, (promoted, its.promoted) = named.plan.policy.using, (its.promoted, [])
    if its.healed:
        tell("healed", named.name, using)
        its.healed = 0
    for one in promoted:
        try:
            guarded, names, message = unpacked(one.message)
            id = guarded.send_again(message, names)
            run(work.sent(SyncPort(named.plan.server), named.keys, one.id, id, lives))
        except Exception:
            logger.exception("The parked task %s of %r could not be sent", one.id, named.name)
        else:
            tell("promoted", named.name, using, one.id)


class Swept(NamedTuple):
    """What came of a sweep: numbers of messages."""

    healed: int
    promoted: int
    left: int
    """They are still parked."""


def sweep(named: Named, lives: float = QUEUED_FOR) -> Swept:
    """Let parked messages of a name go on whose permits are free. Raises `LockUnavailable`."""
    its = Work("", named.rule.plan(named.name).policy.limit or 1)
    left = run(its.sweep(SyncPort(named.plan.server), named.keys))
    swept = Swept(its.healed, len(its.promoted), left)
    send_promoted(named, its, lives)
    return swept


class Attempt:
    """One delivery of a message to a worker."""

    start: Start
    """Why it has not begun."""

    def __init__(self, guarded: Guarded, delivery: Delivery) -> None:
        self.guarded, self.delivery = guarded, delivery
        self.args, self.kwargs = delivery.args, delivery.kwargs
        self.leases: list[Lease] = []
        self._runs: list[tuple[Named, Work]] = []

    async def begin(self, port_type: type[SyncPort | AsyncPort]) -> bool:
        """Take a permit by each rule, that of `unique` last: it frees the claim. False: `start`
        says why there is none; no permit is kept."""
        guarded, delivery = self.guarded, self.delivery
        names = await guarded._names(port_type, *delivery[:3])
        message = guarded.packed(delivery.message(), names)
        names.sort(key=lambda one: one.rule is guarded._unique)
        try:
            for named in names:
                if not await self._take(port_type, named, message):
                    await self._release(port_type)
                    return False
        except BaseException:
            for lease in self.leases:
                lease._abandon()
            raise
        return True

    async def _take(
        self, port_type: type[SyncPort | AsyncPort], named: Named, message: bytes
    ) -> bool:
        plan, rule, me = named.plan, named.rule, label.holder()
        its = Work(self.delivery.id, plan.policy.limit or 1, rule.weight)
        self._runs.append((named, its))
        claim = Claim(
            keys=named.keys,
            token=tokens.new(),
            ttl=plan.ttl,
            owner=label.owner(me),
            label=label.clean(f"{self.guarded.path} {self.delivery.id}"),
            primitive=its,
        )
        port = port_type(plan.server, terms=plan.terms)
        try:
            renamed = self.guarded.queue.renamed
            start = await its.start(port, claim, message, recover=rule.recover, renamed=renamed)
            if not isinstance(start, Started):
                self.start = start
                if isinstance(start, Parked):
                    if not message:
                        raise self.guarded._too_large(self.delivery.message())
                    tell("parked", named.name, plan.policy.using, self.delivery.id)
                    lives = self.guarded.queued_for
                    again = lambda: sweep(named, lives).left > 0  # noqa: E731
                    upkeep().sweep(named.keys.lock, again, plan.ttl)
                return False
            lease = Lease(plan.server, claim, start.grant, plan.policy, Hold(me))
            self.leases.append(lease)
            lease.check()
        except BaseException as error:
            await claims.cut_short(error, port_type, plan.server, claim)
            if type(error) is LockError:
                raise await claims.explained(port, claim, plan.server.using, error) from error
            raise
        if start.latest is not None:
            guarded = self.guarded
            self.args, self.kwargs = guarded.queue.load(guarded.task, start.latest)
        fence = start.grant.fencing_token
        await claims.report(port, "acquired", claim, plan.server, fencing_token=fence, waited=0.0)
        return True

    async def _release(self, port_type: type[SyncPort | AsyncPort]) -> None:
        for lease in self.leases:
            with suppress(LockError):  # it is released later
                await lease._end_hold(port_type(lease._server), lease._holds.unentered)
        self.leases = []

    def send_promoted(self) -> None:
        """Send what this attempt has promoted."""
        for named, its in self._runs:
            send_promoted(named, its, self.guarded.queued_for)
