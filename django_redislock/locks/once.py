"""`once` and `deduplicate`: what was done need not be done again, by whomever.

1.  Who finds a record that says *done* has nothing to do, and takes no lock to learn that.
2.  Everybody else takes the lock, and reads the record again: the one before may just have
    written it. If it is not there, this one is the first.
3.  What the first has done is written down before its lock is released. An exception, a rollback
    or a crash leaves no record, so the next one is the first again (at least once); or, by
    choice, the record is written before the work as well, and then nobody tries again (at most
    once).

This is what `SET name NX` is used for as a flag, without its two gaps: a crash that leaves the
flag for work that was never done, and a second caller that goes on while the first is at it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypedDict, Unpack

from ..base import label
from ..base.clock import now
from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..lease.lease import Lease
from ..lease.lock import Lock, call, refuse_event_loop
from ..primitives import record
from ..primitives.contract import Port
from ..primitives.keys import validate_name
from ..primitives.waiting import Deadline
from ..settings.validators import refuse_unknown, validate_kept, validate_wait
from ..transport.ports import AsyncPort, SyncPort, run
from ..transport.server import server_of
from .completion import Completion, awaiting_commit, give_back
from .redis_lock import FunctionDecorator, LockFor, redis_lock

BEGUN, DONE = b"begun", b"done"

MOMENT = 1.0
"""Seconds in which the watchdog releases what a rollback has left."""


class OnceOptions(TypedDict, total=False):
    """What `once` takes besides the name and `ttl`."""

    wait: float | None
    """Seconds to wait for whoever is at it; 0, the default: don't, None: for ever."""
    on_conflict: Literal["skip", "raise"]
    """What happens when somebody else is still at it then."""
    on_failure: Literal["retry", "lose"]
    """Whether another one tries after an exception or a crash."""
    release: Literal["exit", "commit", "warn"]
    """When it is done: when the block is left, or when the transaction around it has committed."""
    using: str
    """An alias of CACHES that django-redis serves."""


class once(FunctionDecorator):
    """Do something once, across processes and hosts: a block, or a function and its arguments.

    As a context manager, sync or async, it tells whether this one is the first:
    `with once("warm-cache", ttl=3600) as first: if first: …`. As a decorator it calls the function
    for the first, and returns None to all others; its name is a template over the arguments, as
    that of `redis_lock`.

    It is done when the block or the function has ended without an exception, and from then on for
    `ttl` seconds, or for good. `wait` says for how many seconds others wait until the first has
    done it (0: not at all, None: for ever). When it fails meanwhile, one of them is the first.

    `on_conflict` says what happens when somebody else is still at it then: `"skip"`, as if it were
    done, or `"raise"`. By default, whoever does not wait skips, and who has waited in vain gets
    the error, since it counts on it being done.

    `on_failure="retry"` lets another one try after an exception or a crash, so it is done at least
    once. With `"lose"` nobody tries again: it is begun at most once.

    `release="commit"` makes it done when the database transaction around it has been committed,
    and not done when that is rolled back; until then, others find it under way.

    Its lock is named `once:<name>`. For that name the settings of locks hold, but for `WAIT` and
    `ON_CONFLICT`; `TTL` is how long it takes until a crash is noticed.

    Raises `LockNotAcquired`; `LockUnavailable` when Redis can't be asked, and then nothing is
    done; `LockReentered` inside of itself; `LeaseLost` at the end of a block whose lease was lost,
    which is then not done.
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
        of_lock = {option: given.pop(option) for option in ("release", "using") if option in given}
        refuse_unknown(given, type(self).__name__)
        self._template = name
        self._ttl = validate_kept(ttl)
        self._skips = _one_of(on_conflict, "on_conflict", "skip", "raise") == "skip"
        self._retries = _one_of(on_failure, "on_failure", "retry", "lose") == "retry"
        self._lock = redis_lock(wait=wait, **of_lock)._of_kind("mutex")
        self._entered: list[tuple[label.Holding, Any]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template!r}>"

    # The public twins.

    def forget(self) -> None:
        """Let it be done again. Who is at it now still makes it done. Raises `LockUnavailable`."""
        run(self._forget(SyncPort))

    async def aforget(self) -> None:
        """`forget` for coroutines."""
        await self._forget(AsyncPort)

    def __enter__(self) -> bool:
        block = self._block(self._named())
        first = block.__enter__()
        self._entered.append((label.holder(), block))
        return first

    def __exit__(self, *error: Any) -> None:
        self._innermost().__exit__(*error)

    async def __aenter__(self) -> bool:
        block = self._ablock(self._named())
        first = await block.__aenter__()
        self._entered.append((label.holder(), block))
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
            run(completion.complete(SyncPort(lease.server), DONE))

    @asynccontextmanager
    async def _ablock(self, lock: Lock) -> AsyncIterator[bool]:
        completion = await self._begin(lock, AsyncPort)
        if completion is None:
            yield False
            return
        async with completion.lease as lease:
            yield True
            await completion.complete(AsyncPort(lease.server), DONE)

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
                f"{type(self).__name__} does not decorate a generator such as {function!r}, which "
                f"may never come to its end. Write `with {type(self).__name__}(…) as first:` "
                f"inside of it."
            )
        return adecorated if kind == "coroutine" else decorated

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._lock._renamed(name, where)

    def _named(self) -> Lock:
        """The lock, where this is not used as a decorator."""
        if self._template is None or callable(self._template):
            title = type(self).__name__
            raise TypeError(
                f"{title}() without a name, or with a function as its name, is for decorating "
                f"functions; elsewhere write {title}('warm-cache')"
            )
        return self._lock_for(self._prefix + validate_name(self._template), "")

    def _innermost(self) -> Any:
        # It may be shared by threads and tasks, and left by another one than entered it.
        me = label.holder()
        mine = [entry for entry in self._entered if entry[0] is me]
        entry = (mine or self._entered)[-1]
        self._entered.remove(entry)
        return entry[1]

    # The coroutines that the twins share.

    async def _begin(self, lock: Lock, port_type: type[SyncPort | AsyncPort]) -> Completion | None:
        """The work, for the first; None: there is nothing to do."""
        port = port_type(server_of(lock.policy().using))
        patience = Deadline(now(), lock.policy().wait)
        port.limit(patience.left(now()))
        try:
            if await record.read(port, lock._keys()) == DONE:
                return None
        except LockUnavailable as error:
            if not error.passing or patience.over(now()):
                raise
            # Else whoever takes the lock waits until Redis is back.
        port.limit(float("inf"))
        lease = await self._acquire(lock, port_type, patience.left(now()))
        if lease is None:
            return None
        try:
            return await self._first(port, lease)
        except BaseException:
            lease.abandon()
            raise

    async def _acquire(
        self, lock: Lock, port_type: type[SyncPort | AsyncPort], wait: float
    ) -> Lease | None:
        got = await lock._attempt(port_type, wait)
        if isinstance(got, LockNotAcquired) and got.holder.owner == label.owner(label.holder()):
            # Ourselves: a transaction that was rolled back just now has left it to the watchdog.
            longest = lock.policy().wait
            got = await lock._attempt(port_type, None if longest is None else max(longest, MOMENT))
        if isinstance(got, Lease):
            return got
        if self._skips:
            return None
        raise got

    async def _first(self, port: Port, lease: Lease) -> Completion | None:
        known = await record.read(port, lease.claim.keys)
        if known is not None or lease in awaiting_commit:
            await give_back(port, lease)
            return None
        completion = Completion(lease, self._ttl)
        if not self._retries:
            await completion.begin(port, BEGUN)
        if lease.release_at == "commit":
            await port.beside_orm(completion.watch_transactions)
        return completion

    async def _forget(self, port_type: type[SyncPort | AsyncPort]) -> None:
        lock = self._named()
        await record.forget(port_type(server_of(lock.policy().using)), lock._keys())


class deduplicate(once):
    """Process a message once, however often it is delivered.

    As `once`, of which it has all arguments: `with deduplicate(message.id) as first:`, or as the
    decorator of a consumer, `@deduplicate("order:{message.id}")`. A message is processed when the
    block has ended without an exception, and remembered for `ttl` seconds (a day): choose more
    than the queue may take to deliver it again. A consumer that crashed half-way lets another one
    try.

    Whoever gets a message that another one is just working on gets `LockNotAcquired`, and has to
    refuse the message, so that the queue delivers it later: that other one may still fail.

    Its lock is named `deduplicate:<message_id>`.
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
