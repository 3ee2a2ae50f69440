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
from typing import Any, NamedTuple

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
from ..primitives.work import SHORT, TICKET, Conflict, Promoted, Start, Started, Work
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import Server
from . import waiting
from .events import tell
from .queue import MOST, Delivery, Queue
from .rules import PREFIX, Named, Rule, Uniqueness

logger = logging.getLogger("django_redislock")

_sending_again: ContextVar[bool] = ContextVar("redislock_sending_again", default=False)
_inside: ContextVar[tuple[Guarded, ...]] = ContextVar("redislock_inside_tasks", default=())
"""The tasks whose functions run here. A function that calls its own task as a function runs no
other message."""

_known: dict[str, Guarded] = {}
"""By the dotted path of the function."""


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

    # Enqueueing.

    def enqueue(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        send: Callable[[], tuple[Any, str]],
        *,
        id: str | None = None,
        again: bool = False,
    ) -> Any:
        """Claim the name of a call, and `send` it, which returns its handle and its id.

        `id` is the id that it is going to have, if that is known. `again`: it is a retry, or
        others count on this very message, so it is sent in any case.

        Returns the handle, or what `on_conflict` says. Raises `LockUnavailable`, `TaskConflict`.
        """
        rule = self._unique
        if _sending_again.get():
            return send()[0]
        names = [one.named(args, kwargs) for one in self.rules]
        if rule is None or again:
            if rule is not None and id is not None:
                with suppress(LockUnavailable):
                    self._claim(self._named(names, rule), rule, id, rule.queued_for, b"")
            handle, its = send()
            self._note(names, its, rule)
            return handle
        text = (
            b"" if rule.settle is None else self._bounded(self.queue.dump(self.task, args, kwargs))
        )
        named, connection = self._named(names, rule), connections[rule.database]
        later = connection.in_atomic_block
        its = TICKET + tokens.word() if later or id is None else id
        conflict = self._claim(named, rule, its, SHORT, text)
        if conflict is not None:
            return self._conflict(named, rule, conflict)
        if not later:
            return self._send(names, named, rule, its, send)
        waiting.until_commit(named.plan.server, named.keys, its)
        at_end(
            connection,
            committed=partial(self._committed, names, named, rule, its, send),
            dropped=partial(waiting.undo, its),
        )
        return None if id is None else self.queue.handle(self.task, id)

    @staticmethod
    def _named(names: Sequence[Named], rule: Rule) -> Named:
        return next(one for one in names if one.rule is rule)

    def _claim(
        self, named: Named, rule: Uniqueness, id: str, lives: float, text: bytes
    ) -> Conflict | None:
        waiting.undo_dropped()
        says = f"{label.owner(label.holder())}|{label.clean(label.of_caller())}"
        ask = partial(
            work.claim,
            SyncPort(named.plan.server),
            named.keys,
            id,
            says,
            lives=lives,
            alone=rule.alone,
            settle=rule.settle,
            message=text,
        )
        conflict = run(ask())
        while conflict is not None and rule.on_conflict == "replace":
            if conflict.runs or conflict.id.startswith(TICKET):
                break
            replaced = conflict.id
            conflict = run(ask(over=replaced))
            if conflict is None:
                tell("replaced", named.name, named.plan.policy.using, replaced)
        if conflict is None:
            tell("claimed", named.name, named.plan.policy.using, id)
        return conflict

    def _conflict(self, named: Named, rule: Uniqueness, conflict: Conflict) -> Any:
        tell("coalesced", named.name, named.plan.policy.using, conflict.id)
        if rule.on_conflict == "raise":
            raise conflict.error(named.name)
        if rule.on_conflict == "skip" or conflict.id.startswith(TICKET):
            return None
        return self.queue.handle(self.task, conflict.id)

    def _send(
        self,
        names: Sequence[Named],
        named: Named,
        rule: Uniqueness,
        claimed: str,
        send: Callable[[], tuple[Any, str]],
    ) -> Any:
        """Send a task whose name was claimed, and let its claim live on."""
        port, keys = SyncPort(named.plan.server), named.keys
        try:
            if not claimed.startswith(TICKET):
                self._note(names, claimed, rule)
            handle, id = send()
        except BaseException:
            with suppress(LockUnavailable):  # then it ends by itself
                run(work.confirm(port, keys, claimed, "", SHORT))
            raise
        try:
            if claimed.startswith(TICKET):
                self._note(names, id, rule)
            run(work.confirm(port, keys, claimed, id, rule.queued_for))
        except LockUnavailable as error:
            logger.warning("The task %s is queued, and keeps its name only shortly: %s", id, error)
        return handle

    def _committed(
        self,
        names: Sequence[Named],
        named: Named,
        rule: Uniqueness,
        claimed: str,
        send: Callable[[], tuple[Any, str]],
    ) -> None:
        waiting.committed(claimed)
        self._send(names, named, rule, claimed, send)

    # Notes: the names of a message, by its id. The worker may be in another scope, or have another
    # template.

    def _note(self, names: Sequence[Named], id: str, rule: Uniqueness | None) -> None:
        if rule is None and not any(one.keys.unscoped for one in names):
            return
        lives = 3600.0 if rule is None else rule.queued_for
        said = json.dumps([[one.name, one.keys.name] for one in names]).encode()
        port, key = self._noted(names[0].plan.server, names[0].keys.prefix, id)
        run(port.script("record_set", [key], [tokens.word(), said, round(lives * 1000)]))

    @staticmethod
    def _noted(server: Server, prefix: str, id: str) -> tuple[SyncPort, str]:
        return SyncPort(server), Keys.of(prefix, f"message:{id}").record

    async def _names(
        self, port_type: type[SyncPort | AsyncPort], delivery: Delivery
    ) -> list[Named]:
        """Return the rules for the names that were noted, or else for those that the arguments
        have here."""
        plan = self.rules[0].plan(PREFIX)
        keys = Keys.of(plan.policy.prefix, f"message:{delivery.id.partition(':')[0]}")
        noted = await record.read(port_type(plan.server), keys)
        if noted is not None:
            with suppress(ValueError, TypeError):
                said = json.loads(noted)
                return [
                    rule.noted(name, scoped)
                    for rule, (name, scoped) in zip(self.rules, said, strict=True)
                ]
        return [rule.named(delivery.args, delivery.kwargs) for rule in self.rules]

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
                with self._running():
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
                return instead(attempt.start)
            async with AsyncExitStack() as stack:
                for lease in attempt.leases:
                    await stack.enter_async_context(lease)
                with self._running():
                    return await function(*attempt.args, **attempt.kwargs)
        finally:
            await sync_to_async(attempt.send_promoted)()

    @contextmanager
    def _running(self) -> Iterator[None]:
        token = _inside.set((*_inside.get(), self))
        try:
            yield
        finally:
            _inside.reset(token)

    # Parking.

    def packed(self, message: bytes) -> bytes:
        """Return what is parked of a message: any process can send it again."""
        body = base64.b64encode(message).decode()
        return self._bounded(json.dumps([self.queue.name, self.path, body]).encode())

    def _bounded(self, text: bytes) -> bytes:
        if len(text) > MOST:
            raise ValueError(
                f"a message of {self.path} has {len(text)} bytes, and Redis keeps up to {MOST}: "
                f"pass the key of a row, or of a file, in place of its content"
            )
        return text

    def send_again(self, message: bytes) -> str:
        """Send a message that was parked. Returns its id."""
        with _as_it_is():
            return self.queue.send_again(self.task, message)

    def send_later(self, delivery: Delivery, send: Callable[[], str]) -> None:
        """Send a message that is not due, with a delay. Its claim goes on with its id."""
        with _as_it_is():
            id = send()
        rule = self._unique
        if rule is not None and id != delivery.id:
            names = run(self._names(SyncPort, delivery))
            named = self._named(names, rule)
            self._note(names, id, rule)
            port = SyncPort(named.plan.server)
            run(work.confirm(port, named.keys, delivery.id, id, rule.queued_for))


@contextmanager
def _as_it_is() -> Iterator[None]:
    """Let enqueues claim nothing: a message is sent again."""
    token = _sending_again.set(True)
    try:
        yield
    finally:
        _sending_again.reset(token)


def unpacked(message: bytes) -> tuple[Guarded, bytes]:
    """Return the task of a parked message, and the message. Raises `LookupError` if this process
    does not know the task."""
    _, path, body = json.loads(message)
    if path not in _known:
        module = path
        while module:
            module = module.rpartition(".")[0]
            with suppress(ImportError):
                import_module(module)
                break
    if path not in _known:
        raise LookupError(f"{path} is no task with @unique or @limited in this process")
    return _known[path], base64.b64decode(body)


def send_promoted(named: Named, promoted: Sequence[Promoted], lives: float) -> None:
    """Send messages that have got their permits. One that can't be sent is the next one again,
    after ten seconds."""
    for its in promoted:
        try:
            guarded, message = unpacked(its.message)
            id = guarded.send_again(message)
            run(work.sent(SyncPort(named.plan.server), named.keys, its.id, id, lives))
        except (Exception, LockError):
            logger.exception("The parked task %s of %r could not be sent", its.id, named.name)
        else:
            tell("promoted", named.name, named.plan.policy.using, its.id)


class _Run(NamedTuple):
    named: Named
    work: Work


class Attempt:
    """One delivery of a message to a worker."""

    start: Start
    """Why it has not begun."""

    def __init__(self, guarded: Guarded, delivery: Delivery) -> None:
        self.guarded, self.delivery = guarded, delivery
        self.args, self.kwargs = delivery.args, delivery.kwargs
        self.leases: list[Lease] = []
        self._runs: list[_Run] = []

    async def begin(self, port_type: type[SyncPort | AsyncPort]) -> bool:
        """Take a permit by each rule, that of `unique` last: it frees the claim. False: `start`
        says why there is none; no permit is kept."""
        guarded, delivery = self.guarded, self.delivery
        names = await guarded._names(port_type, delivery)
        names.sort(key=lambda one: one.rule is guarded._unique)
        message = guarded.packed(delivery.message())
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
        self._runs.append(_Run(named, its))
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
                if isinstance(start, work.Parked):
                    tell("parked", named.name, plan.policy.using, self.delivery.id)
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
        unique = self.guarded._unique
        lives = unique.queued_for if unique else 3600.0
        for named, its in self._runs:
            if its.healed:
                tell("healed", named.name, named.plan.policy.using)
                its.healed = 0
            promoted, its.promoted = its.promoted, []
            send_promoted(named, promoted, lives)
