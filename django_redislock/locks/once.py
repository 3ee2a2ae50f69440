"""`once` and `deduplicate`: work that was done is not done again, by any process.

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
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypedDict, Unpack

from ..base import label
from ..base.exceptions import LockNotAcquired
from ..lease.holds import Running
from ..lease.lease import Lease
from ..lease.lock import Lock, call, refuse_event_loop
from ..lease.sides import beside_orm
from ..lease.watchdog import watchdog
from ..primitives import record
from ..primitives.contract import run
from ..primitives.keys import validate_name
from ..settings.validators import (
    OF_A_RESULT,
    WAIT,
    refuse_unknown,
    validate_kept,
    validate_wait,
)
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import server_of
from .completion import Completion, Done, acquire_unless_recorded, awaiting_commit
from .function_decorator import FunctionDecorator
from .redis_lock import redis_lock
from .wrappers import LockFor

BEGUN, DONE = b"begun", b"done"
IS_DONE = "^done$"

INSIDE = "leave the inner block out, or give it another name"

ROLLBACK_RELEASE = 1.0
"""Seconds within which the watchdog releases the lease of a transaction that was rolled back."""


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

    Raises `LockNotAcquired`; `LockUnavailable` if Redis can't be asked, and then nothing was done;
    `LockReentered` inside its own block; `LeaseLost` at the end of a block whose lease was lost,
    and then the work is not recorded as done.
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
        self._ttl = validate_kept(ttl)
        self._skips = _one_of(on_conflict, "on_conflict", "skip", "raise") == "skip"
        self._retries = _one_of(on_failure, "on_failure", "retry", "lose") == "retry"
        self._lock = redis_lock(wait=wait, **of_lock)._of_kind("mutex")._advising(INSIDE)
        self._entered: Running[Any, label.Holding] = Running()
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
        self._entered[block] = label.holder()
        return first

    def __exit__(self, *error: Any) -> None:
        self._innermost().__exit__(*error)

    async def __aenter__(self) -> bool:
        block = self._ablock(self._named())
        first = await block.__aenter__()
        self._entered[block] = label.holder()
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

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
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

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._lock._renamed(name, where)

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
        me, entered = label.holder(), self._entered.copy()
        mine = [block for block, by in entered.items() if by is me]
        block = (mine or [*entered])[-1]
        del self._entered[block]
        return block

    # The coroutines that the twins share.

    async def _begin(self, lock: Lock, port_type: type[SyncPort | AsyncPort]) -> Completion | None:
        """Return the work for the first caller, or None if there is nothing to do."""
        try:
            lease = await self._acquire(lock, port_type)
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

    async def _acquire(self, lock: Lock, port_type: type[SyncPort | AsyncPort]) -> Lease:
        policy = lock._policy()
        wait = policy.wait
        if wait is not None and watchdog(server_of(policy.using)).owes(lock.name):
            # A transaction of this process was just rolled back: nobody does the work any more,
            # and the lock is about to be released.
            wait = max(wait, ROLLBACK_RELEASE)
        return await acquire_unless_recorded(port_type, lock, _answers, pattern=IS_DONE, wait=wait)

    async def _forget(self, port_type: type[SyncPort | AsyncPort]) -> None:
        lock = self._named()
        await record.forget(port_type(server_of(lock._policy().using)), lock._keys())


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


def _one_of(value: Any, name: str, *allowed: str) -> Any:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")
    return value
