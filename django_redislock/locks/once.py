"""`once`, `deduplicate` and `initialise`: what was done is not done again, by any process.

1.  A caller that finds the record `done` has nothing to do, and takes no lock.
2.  Other callers take the lock and read the record again, since the previous holder may just have
    written it. If there is none, this caller is the first.
3.  The work of the first caller is recorded before its lock is released. An exception, a rollback
    or a crash leaves no record, so the next caller is the first again (at least once). With
    `on_failure="lose"` a record is also written before the work, and then nobody tries again (at
    most once).

People use `SET name NX` as a flag for this. That has two gaps, which are closed here: a crash
leaves the flag for work that was never done, and a second caller goes on while the first is still
working.

`once`, `single_flight` and `idempotent_view` record their work beside its lock in the same way, in
two round trips:

1.  `acquire_unless_recorded` looks at the record and takes the lock, in one step. If the record
    answers the caller, no lock is taken.
2.  The lease is released when the work is certain, and the record is written in the same step.

`Completion` does that for work that may depend on database transactions (where the lock is held
until they end):

1.  Each open transaction is watched from before the work and again after it. From before, since
    Django drops the later `on_commit` functions when one raises.
2.  The record is handed to the lease when the last transaction was committed, or at once if there
    is none.
3.  If Redis is unreachable when the lease is released, the watchdog writes the record and releases
    the lease as soon as it can.
4.  Work that was rolled back is never recorded, nor is work under a lease that was lost.
"""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from django.db.backends.base.base import BaseDatabaseWrapper

from ..base import people
from ..base.callables import call
from ..base.exceptions import LeaseLost, LockError, LockNotAcquired, LockReentered, LockUnavailable
from ..lease.claims import beside_orm
from ..lease.holds import Running
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, refuse_event_loop
from ..lease.plan import Plan
from ..lease.transactions import at_end, open_transactions
from ..primitives import record
from ..primitives.contract import Done, Port, run
from ..primitives.keys import Keys, validate_name
from ..primitives.record import Recorded, Result
from ..settings.validators import (
    OF_A_RESULT,
    WAIT,
    one_of,
    refuse_unknown,
    validate_kept,
    validate_wait,
)
from ..transport.ports import AsyncPort, PortType, SyncPort
from .decorate import AnyFunction, FunctionDecorator, LockFor
from .redis_lock import redis_lock

T = TypeVar("T")

BEGUN, DONE = b"begun", b"done"
IS_DONE = "^done$"


ROLLBACK_RELEASE = 1.0
"""Seconds within which the watchdog releases the lease of a transaction that was rolled back."""

awaiting_commit: weakref.WeakSet[Lease] = weakref.WeakSet()
"""Leases whose work is done, but for a commit."""


async def acquire_unless_recorded(
    port_type: PortType,
    lock: Lock,
    answers: Callable[[bytes | None, Lease | None], bool],
    *,
    pattern: str,
    wait: float | None = UNSET,
    stale: float | None = None,
) -> Lease:
    """Return the lease under which to do the work.

    `answers` decides whether a record (None: there is none) makes the work needless. It is called
    first without a lease, for the record when the caller came, and then with the lease that was
    taken. A record that matches `pattern`, of Lua, makes the work needless in any case. It is to
    be renewed if it has no more than `stale` seconds left.

    Raises `Done`, `LockNotAcquired`, `LockUnavailable`, `LockReentered`.
    """
    recorded: Recorded

    def algorithm(plan: Plan) -> Recorded:
        nonlocal recorded
        both = bool(plan.policy.timestamp_key)
        recorded = Recorded(pattern, old_clients=both, stale=stale)
        return recorded

    its = lock._copy(Lock, "")
    its._algorithm = algorithm
    try:
        lease = await its._attempt(port_type, wait)
    except LockReentered:
        # This thread or task is doing the work, unless it was done before.
        port = port_type(lock._plan().server)
        value = await record.read(port, lock._keys())
        if answers(value, None):
            raise Done(value) from None
        raise
    if not isinstance(lease, Lease):
        raise lease
    try:
        port = port_type(lease._server)
        first, found = recorded.first, recorded.found
        if lease._claim.primitive is not recorded:
            first = found = await _of_own_lease(port, lease)
        needless = answers(first, None)
        if not answers(found, lease) and not needless:
            return lease
        await _release(port, lease)
    except BaseException:
        lease._abandon()
        raise
    raise Done(found)


async def _of_own_lease(port: Port, lease: Lease) -> bytes | None:
    """Return the record of a lease that this thread or task had already, and holds once more: the
    one that its release is going to write, or the one that is there."""
    recorded = lease._claim.primitive
    if isinstance(recorded, Recorded) and recorded.result is not None:
        return recorded.result.value
    return await record.read(port, lease._claim.keys)


async def _release(port: Port, lease: Lease) -> None:
    """Release a lease under which nothing was done, so that its loss does not matter."""
    with suppress(LeaseLost, LockUnavailable):  # then it is released later
        await lease._end_hold(port, lease._holds.unentered)


class Completion:
    """Work under `lease`, to be recorded for `ttl` seconds (None: without end)."""

    def __init__(self, lease: Lease, ttl: float | None) -> None:
        self.lease = lease
        self._ttl = ttl
        self._value: bytes | None = None
        self._transactions: list[BaseDatabaseWrapper] = []
        self._steps = 0
        """Transactions that were committed, and one for the work when it is done."""

    async def begin(self, port: Port, value: bytes) -> None:
        """Write a first record, before the work. Raises `LeaseLost`, `LockUnavailable`."""
        refusal = await record.write(port, self.lease._claim, value, self._ttl)
        if refusal is not None:
            raise refusal.error(self.lease.name)

    def watch_transactions(self) -> None:
        """Wait for the commit of each open transaction. Raises `TransactionManagementError`."""
        for connection in open_transactions():
            if connection not in self._transactions:
                self._transactions.append(connection)
                at_end(connection, committed=self._step, dropped=self._rolled_back)

    async def complete(self, port: Port, value: bytes) -> None:
        """Record the work, which has succeeded. Raises `LeaseLost` if it is known in time."""
        if self.lease._policy.release == "commit":
            await beside_orm(port, partial(self.when_committed, value))
        else:
            self.lease.check()
            self._record(value)

    def when_committed(self, value: bytes) -> None:
        """`complete`, called in the thread that has the transactions."""
        self.lease.check()  # while everything can still be rolled back
        self._value = value
        self.watch_transactions()
        awaiting_commit.add(self.lease)
        self._step()

    def _step(self) -> None:
        """A transaction was committed, or the work is done."""
        self._steps += 1
        if self._value is not None and self._steps > len(self._transactions):
            awaiting_commit.discard(self.lease)
            self._record(self._value)

    def _rolled_back(self) -> None:
        """One step will never come, so nothing is recorded. The work may be tried again at once,
        perhaps under this same lease."""
        awaiting_commit.discard(self.lease)

    def _record(self, value: bytes) -> None:
        # Work that was committed is done even if the lease has ended since.
        write_at_release(self.lease, value, self._ttl, held=not self._transactions)
        self.lease._claim.owed = True


def write_at_release(lease: Lease, value: bytes, ttl: float | None, *, held: bool) -> None:
    """Let the release of `lease` write its record, as `Result` says."""
    recorded = lease._claim.primitive
    assert isinstance(recorded, Recorded)
    recorded.result = Result(value, ttl, held)


class OnceOptions(TypedDict, total=False):
    """The options of `once`, besides the name and `ttl`."""

    wait: float | None
    """Seconds to wait while another caller does the work; 0 (the default): don't wait, None: no
    limit."""
    on_conflict: Literal["skip", "raise"]
    """What happens if another caller is still working then."""
    on_failure: Literal["retry", "lose"]
    """Whether another caller tries after an exception or a crash."""
    release: Literal["exit", "commit", "warn"]
    """When the work is done: when the block ends, or when the transaction around it commits."""
    using: str
    """An alias of CACHES that leads to a Redis."""
    scope: None
    """None: the name has no scope, whatever the setting `SCOPE` says."""


_OF_LOCK = ("release", "using", "scope")


class once(FunctionDecorator[Literal["skip"]]):
    """Do something once, across processes and hosts: a block, or a function and its arguments.

    As a context manager, sync or async, it says whether this caller is the first:
    `with once("warm-cache", ttl=3600) as first: if first: …`. As a decorator it calls the function
    for the first caller, and returns None to all others; its name is a template over the
    arguments, as in `redis_lock`.

    The work is done when the block or the function has ended without an exception. It stays done
    for `ttl` seconds, or without end. `wait` is for how many seconds other callers wait until the
    first has done it (0: not at all, None: no limit). If the first fails meanwhile, one of them
    becomes the first.

    `on_conflict` says what happens if another caller is still working then: `"skip"`, as if the
    work were done, or `"raise"`. By default a caller that does not wait skips, and a caller that
    has waited in vain gets the error, since it counts on the work being done.

    With `on_failure="retry"` another caller may try after an exception or a crash, so the work is
    done at least once. With `"lose"` nobody tries again: it is begun at most once.

    With `release="commit"` the work is done when the database transaction around it has committed,
    and not done if that is rolled back; until then other callers find it under way.

    The lock is named `once:<name>`. The settings of locks apply to that name, except `WAIT` and
    `ON_CONFLICT`; `TTL` is how long it takes until a crash is noticed.

    Raises `LockNotAcquired`; `LockUnavailable` if Redis can't be reached, and then nothing was
    done; `LockReentered` inside its own block; `LeaseLost` at the end of a block whose lease was
    lost, and then the work is not recorded as done.
    """

    _prefix = "once:"

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        ttl: float | None = None,
        **options: Unpack[OnceOptions],
    ) -> None:
        given: dict[str, Any] = dict(options)
        wait = validate_wait(given.pop("wait", 0))
        on_conflict = given.pop("on_conflict", "skip" if wait == 0 else "raise")
        on_failure = given.pop("on_failure", "retry")
        of_lock = {option: given.pop(option) for option in _OF_LOCK if option in given}
        refuse_unknown(given, type(self).__name__, OF_A_RESULT | WAIT)
        self._template = name
        self._ttl = validate_kept(ttl, "ttl")
        self._skips = one_of("skip", "raise")(on_conflict, "on_conflict") == "skip"
        self._retries = one_of("retry", "lose")(on_failure, "on_failure") == "retry"
        self._lock = redis_lock(wait=wait, **of_lock)._recording()
        self._entered: Running[Any, people.Holding] = Running()
        """The blocks that were entered and not left, in order, and by whom."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template!r}>"

    # The public twins.

    def forget(self) -> None:
        """Let the work be done again. A caller that is doing it now still records it as done.

        Raises `LockUnavailable`.
        """
        run(self._forget(SyncPort))

    async def aforget(self) -> None:
        """`forget` for coroutines."""
        await self._forget(AsyncPort)

    def __enter__(self) -> bool:
        block = self._block(self._named())
        first = block.__enter__()
        self._entered[block] = people.holder()
        return first

    def __exit__(self, *error: Any) -> None:
        self._innermost().__exit__(*error)

    async def __aenter__(self) -> bool:
        block = self._ablock(self._named())
        first = await block.__aenter__()
        self._entered[block] = people.holder()
        return first

    async def __aexit__(self, *error: Any) -> None:
        await self._innermost().__aexit__(*error)

    @contextmanager
    def _block(self, lock: Lock) -> Iterator[bool]:
        refuse_event_loop()
        completion = run(self._begin(lock, SyncPort))
        if completion is None:
            yield False
            return
        with completion.lease as lease:
            yield True
            run(completion.complete(SyncPort(lease._server), DONE))

    @asynccontextmanager
    async def _ablock(self, lock: Lock) -> AsyncIterator[bool]:
        completion = await self._begin(lock, AsyncPort)
        if completion is None:
            yield False
            return
        async with completion.lease as lease:
            yield True
            await completion.complete(AsyncPort(lease._server), DONE)

    def _wrap(self, kind: str, function: AnyFunction, lock_for: LockFor) -> AnyFunction:
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self._block(lock_for(args, kwargs)) as first:
                return call(function, args, kwargs) if first else None

        async def adecorated(*args: Any, **kwargs: Any) -> Any:
            async with self._ablock(lock_for(args, kwargs)) as first:
                return await function(*args, **kwargs) if first else None

        if kind.endswith("generator"):
            raise TypeError(
                f"{type(self).__name__} can't decorate the {kind} {function!r}, which may never "
                f"end. Write `with {type(self).__name__}(…) as first:` inside it."
            )
        return adecorated if kind == "coroutine" else decorated

    def _named(self) -> Lock:
        """Return the lock of a `with` block."""
        if self._template is None or callable(self._template):
            title = type(self).__name__
            raise TypeError(
                f"{title}() without a name, or with a function as its name, is for decorating "
                f"functions; elsewhere write {title}('warm-cache')"
            )
        return self._lock_for(self._prefix + validate_name(self._template), "")

    def _innermost(self) -> Any:
        # Threads and tasks may share this object, and one may leave what another has entered.
        me, entered = people.holder(), self._entered.copy()
        mine = [block for block, by in entered.items() if by is me]
        block = (mine or [*entered])[-1]
        del self._entered[block]
        return block

    # The coroutines that the twins share.

    async def _begin(self, lock: Lock, port_type: PortType) -> Completion | None:
        """Return the work for the first caller, or None if there is nothing to do."""
        try:
            lease = await acquire_unless_recorded(
                port_type, lock, _answers, pattern=IS_DONE, wait=self._wait(lock)
            )
        except Done:
            return None
        except LockNotAcquired:
            if self._skips:
                return None
            raise
        try:
            port = port_type(lease._server)
            completion = Completion(lease, self._ttl)
            if not self._retries:
                await completion.begin(port, BEGUN)
            if lease._policy.release == "commit":
                await beside_orm(port, completion.watch_transactions)
            return completion
        except BaseException:
            lease._abandon()
            raise

    def _wait(self, lock: Lock) -> float | None:
        plan = lock._plan()
        wait = plan.policy.wait
        if wait is not None and plan.watchdog.owes(lock.name):
            # A transaction of this process was just rolled back: nobody does the work any more,
            # and the lock is about to be released.
            wait = max(wait, ROLLBACK_RELEASE)
        return wait

    async def _forget(self, port_type: PortType) -> None:
        lock = self._named()
        await record.forget(port_type(lock._plan().server), lock._keys())


def _answers(value: bytes | None, lease: Lease | None) -> bool:
    """Whether a record means that there is nothing to do.

    The lock of work that has only begun is waited for. If it is free, that work was lost.
    """
    if lease is None:
        return value == DONE
    return value is not None or lease in awaiting_commit


class deduplicate(once):
    """Process a message once, however often it is delivered.

    Takes the arguments of `once`: `with deduplicate(message.id) as first:`, or as the decorator of
    a consumer, `@deduplicate("order:{message.id}")`. A message is processed when the block has
    ended without an exception, and is remembered for `ttl` seconds (a day). Choose a longer time
    than the queue may take to deliver it again. If a consumer crashes half-way, another one tries.

    If another consumer is working on the message, `LockNotAcquired` is raised. Then refuse the
    message, so that the queue delivers it later: the other consumer may still fail.

    The lock is named `deduplicate:<message_id>`.
    """

    _prefix = "deduplicate:"

    def __init__(
        self,
        message_id: str | Callable[..., str] | None = None,
        ttl: float | None = 86_400,
        **options: Unpack[OnceOptions],
    ) -> None:
        options.setdefault("on_conflict", "raise")
        super().__init__(message_id, ttl, **options)


class InitialiseOptions(TypedDict, total=False):
    """The options of `initialise`."""

    ttl: float | None
    """For how many seconds the value stands; None (the default): without end."""
    using: str
    """An alias of CACHES that leads to a Redis."""
    scope: None
    """None: the name has no scope, whatever the setting `SCOPE` says."""


@overload
def initialise(name: str, value: Callable[[], T], **options: Unpack[InitialiseOptions]) -> T: ...
@overload
def initialise(name: str, value: T, **options: Unpack[InitialiseOptions]) -> T: ...
def initialise(name: str, value: Any, **options: Unpack[InitialiseOptions]) -> Any:
    """Give `name` its first value unless it has one. Return the value that stands.

    `value` is anything that JSON can write. Every caller gets it as JSON reads it: a tuple comes
    back as a list, even to the caller that gave it. Type checkers don't know that: to them the
    result has the type of `value`. `value` may be a function, which is called
    only if no value stands yet. If several callers call theirs at the same moment, one result
    stands and the others are dropped. (Use `single_flight` if that is too expensive.)

    The value stands for `ttl` seconds, or without end, and nothing changes it meanwhile. No lock
    is taken. Raises `LockUnavailable`; `LockError` if something else was written in its place;
    `TypeError` if JSON can't write the value.
    """
    return run(_initialise(SyncPort, name, value, {**options}))


@overload
async def ainitialise(
    name: str, value: Callable[[], Awaitable[T]], **options: Unpack[InitialiseOptions]
) -> T: ...
@overload
async def ainitialise(
    name: str, value: Callable[[], T], **options: Unpack[InitialiseOptions]
) -> T: ...
@overload
async def ainitialise(name: str, value: T, **options: Unpack[InitialiseOptions]) -> T: ...
async def ainitialise(name: str, value: Any, **options: Unpack[InitialiseOptions]) -> Any:
    """`initialise` for coroutines; a function may be a coroutine function, too."""
    return await _initialise(AsyncPort, name, value, {**options})


async def _initialise(port_type: PortType, name: str, value: Any, given: dict[str, Any]) -> Any:
    ttl = validate_kept(given.pop("ttl", None), "ttl")
    of_lock = {option: given.pop(option) for option in ("using", "scope") if option in given}
    refuse_unknown(given, "initialise", OF_A_RESULT)
    lock = Lock(f"initialise:{validate_name(name)}", **of_lock)
    keys = lock._keys()
    port = port_type(lock._plan().server)
    if callable(value):
        stands = await record.read(port, keys)
        if stands is not None:
            return _read(stands, keys)
        value = value()
        if inspect.isawaitable(value):
            if port_type is SyncPort:
                if inspect.iscoroutine(value):
                    value.close()
                raise TypeError(f"value of {name!r} is a coroutine function: await ainitialise()")
            value = await value
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"value of {name!r} must be what JSON can write: {error}") from error
    return _read(await record.first(port, keys, text.encode(), ttl), keys)


def _read(stands: bytes, keys: Keys) -> Any:
    try:
        return json.loads(stands)
    except (ValueError, RecursionError):
        raise LockError(
            f"The value at {keys.record!r} can't be read: another program wrote it, or it is "
            f"damaged. Delete the key; the next caller then gives a new value.",
            keys.name,
        ) from None
