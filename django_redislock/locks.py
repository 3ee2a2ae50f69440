"""Lock: a name and a policy. Acquiring it returns a lease, the proof of holding it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from django.core.exceptions import SynchronousOnlyOperation
from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf, label, transactions
from .arguments import (
    refuse_unknown,
    validate_flag,
    validate_label,
    validate_on_lost,
    validate_wait,
)
from .clock import now
from .exceptions import (
    Holder,
    LeaseLost,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
)
from .io import IO, AsyncIO, SyncIO, run
from .keys import Keys, validate_name
from .lease import Cancellation, Claim, Lease, LeaseState, restorers
from .primitives import mutex
from .renewal import renew, watchdog

logger = logging.getLogger("django_redislock")

UNSET: Any = object()
"""Not given: the settings decide."""


class Options(TypedDict, total=False):
    """What a lock takes besides its name. All times are seconds.

    Those of the first group can be set in `REDISLOCK`, too.
    """

    using: str
    """An alias of CACHES that django-redis serves."""
    ttl: float
    """How long a lease lives without renewal."""
    wait: float | None
    """How long to wait for the lock; 0: try once, None: for ever."""
    renew: bool
    """Extend the lease as long as its holder lives."""
    max_hold: float | None
    """When renewal ends, counted from the acquire; None: never."""
    release: Literal["exit", "commit"]
    """When a block releases: when it is left, or when the database transaction around it has
    been committed or rolled back."""
    on_conflict: Literal["raise", "skip"] | Callable[[LockNotAcquired], Any]
    """What a decorated function does without the lock: raise, return None, or return what a
    function of the conflict returns."""

    reentrant: bool
    """The thread or task that holds the lock may take it again."""
    label: str
    """Where the lock is taken, for people; by default the line of code."""
    on_lost: Callable[[Lease], object]
    """Called with the lease, in a thread of its own, when it is lost."""
    cancel_on_lost: bool
    """Cancel the asyncio task that holds the lease when it is lost; its block then raises
    `LeaseLost`."""


# The lease that this process holds on a key, by server alias and key: to notice a thread or
# task that would wait for itself. Weak, so that a dropped lease isn't kept alive.
_held: weakref.WeakValueDictionary[tuple[str, str], Lease] = weakref.WeakValueDictionary()


class Lock:
    """A name and a policy: immutable, reusable, safe to share between threads and tasks.

    Arguments that are not given come from the settings, when the lock is acquired.
    All times are seconds.
    """

    def __init__(self, name: str, **options: Unpack[Options]) -> None:
        self._name: str | None = validate_name(name)
        self._configure(options)

    def _configure(self, options: Options) -> None:
        given = dict(options)
        self._explicit = {
            field: validate(given.pop(field))
            for field, validate in conf.VALIDATORS.items()
            if field in given
        }
        self._reentrant = validate_flag(given.pop("reentrant", False), "reentrant")
        self._cancel_on_lost = validate_flag(given.pop("cancel_on_lost", False), "cancel_on_lost")
        self._label = validate_label(given.pop("label", ""))
        on_lost = given.pop("on_lost", None)
        self._on_lost = None if on_lost is None else validate_on_lost(on_lost)
        refuse_unknown(given)
        self._entered: list[Lease] = []

    @property
    def name(self) -> str:
        """What is locked."""
        assert self._name is not None
        return self._name

    def renamed(self, name: str, default_label: str) -> Lock:
        """A lock of the same policy for one call of a decorated function."""
        lock = object.__new__(Lock)
        lock.__dict__.update(self.__dict__)
        lock._name = validate_name(name)
        lock._label = self._label or default_label
        lock._entered = []
        return lock

    def __repr__(self) -> str:
        options = "".join(f", {field}={value!r}" for field, value in self._explicit.items())
        return f"<{type(self).__name__} {self.name!r}{options}>"

    def policy(self) -> conf.Policy:
        """What the arguments and the settings make of it right now."""
        return conf.policy(self.name, self._explicit)

    # The public twins.

    def acquire(self, wait: float | None = UNSET) -> Lease | None:
        """Return a `Lease`, or None when somebody else holds the lock for all of `wait`.

        Raises `LockUnavailable`, `LockReentered`.
        """
        refuse_event_loop()
        result = run(self.attempt(self.io(), wait))
        return result if isinstance(result, Lease) else None

    async def aacquire(self, wait: float | None = UNSET) -> Lease | None:
        """`acquire` for coroutines."""
        result = await self.attempt(self.aio(), wait)
        return result if isinstance(result, Lease) else None

    def holder(self) -> Holder | None:
        """Who holds the lock now, in this or any other process; None: nobody."""
        return run(self._holder(self.io()))

    async def aholder(self) -> Holder | None:
        """`holder` for coroutines."""
        return await self._holder(self.aio())

    def clear(self, *, reason: str, by: str = "") -> Holder | None:
        """Take the lock away from whoever holds it, and hand it to the next waiter.

        The old holder gets `LeaseRevoked`, with `by` and `reason`, at its next renewal or
        when it releases; until then it goes on working. Returns who it was; None when the
        lock was free, or changed hands in that very moment.
        """
        return run(self._clear(self.io(), by, reason))

    async def aclear(self, *, reason: str, by: str = "") -> Holder | None:
        """`clear` for coroutines."""
        return await self._clear(self.aio(), by, reason)

    def __enter__(self) -> Lease:
        refuse_event_loop()
        lease = run(self._enter(self.io()))
        self._entered.append(lease)
        return lease.__enter__()

    def __exit__(self, exc_type: object, error: BaseException | None, traceback: object) -> None:
        self._pop_entered().__exit__(exc_type, error, traceback)

    async def __aenter__(self) -> Lease:
        lease = await self._enter(self.aio())
        self._entered.append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, exc_type: object, error: BaseException | None, traceback: object
    ) -> None:
        await self._pop_entered().__aexit__(exc_type, error, traceback)

    def _pop_entered(self) -> Lease:
        # A lock may be shared by threads, and one that lost its lease may leave later than
        # the next one enters. A generator may be closed by another thread than began it.
        me = label.holder()
        mine = [lease for lease in self._entered if lease.holder is me] or self._entered
        lease = mine[-1]
        self._entered.remove(lease)
        return lease

    # What a lease asks of its lock.

    def release(self, lease: Lease) -> None:
        lease.blocks -= 1
        run(self.release_through(SyncIO(lease.using), lease))

    async def arelease(self, lease: Lease) -> None:
        lease.blocks -= 1
        await self.release_through(AsyncIO(lease.using), lease)

    def extend(self, lease: Lease) -> None:
        run(renew(SyncIO(lease.using), [lease]))
        lease.check()

    async def aextend(self, lease: Lease) -> None:
        await renew(AsyncIO(lease.using), [lease])
        lease.check()

    def leave(self, lease: Lease, error: BaseException | None) -> None:
        run(self._leave(SyncIO(lease.using), lease, error))

    async def aleave(self, lease: Lease, error: BaseException | None) -> None:
        await self._leave(AsyncIO(lease.using), lease, error)

    # The coroutines that the twins share.

    def io(self) -> SyncIO:
        return SyncIO(self.policy().using, conf.prefix())

    def aio(self) -> AsyncIO:
        return AsyncIO(self.policy().using, conf.prefix())

    def _keys(self) -> Keys:
        return Keys.of(conf.prefix(), self.name)

    async def _holder(self, io: IO) -> Holder | None:
        sight = await mutex.look(io, self._keys())
        return sight and sight.holder

    async def _clear(self, io: IO, by: str, reason: str) -> Holder | None:
        keys = self._keys()
        sight = await mutex.look(io, keys)
        if sight is None:
            return None
        cleared = await mutex.clear(io, keys, sight.token, label.clean(by), label.clean(reason))
        return sight.holder if cleared else None

    async def _enter(self, io: IO) -> Lease:
        if self._explicit.get("on_conflict", "raise") != "raise":
            raise TypeError(
                "on_conflict= is for decorated functions: the body of a with statement can't be "
                "skipped. Write: lease = redis_lock(…).acquire(), and `with lease:` if it is "
                "not None."
            )
        got = await self.attempt(io)
        if isinstance(got, LockNotAcquired):
            raise got
        return got

    async def attempt(self, io: IO, wait: float | None = UNSET) -> Lease | LockNotAcquired:
        policy = self.policy()
        me = label.holder()
        if self._cancel_on_lost and not isinstance(me, asyncio.Task):
            raise TypeError(
                "cancel_on_lost=True needs an asyncio task to cancel. In a thread, pass "
                "on_lost= or call lease.check() between steps."
            )
        if policy.release == "commit":
            transactions.open_transactions()  # fails where it can't keep its word
        wait = policy.wait if wait is UNSET else validate_wait(wait)
        keys = self._keys()
        held = _held.get((policy.using, keys.lock))
        if held is not None and held.holder is me and held.enterable:
            if held.blocks and not self._reentrant:
                raise LockReentered(self.name, held.label)
            held.hold()
            held.blocks += 1
            return held
        claim = Claim(
            keys=keys,
            token=secrets.token_hex(16),
            ttl=policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold),
            owner=label.owner(me),
            label=label.clean(self._label) if self._label else label.of_caller(),
        )
        try:
            got = await mutex.acquire(io, claim, wait)
            if isinstance(got, LockNotAcquired):
                return got
            return self._hold(self._lease(claim, got, policy, me))
        except BaseException:
            # Cancelled, interrupted, or Redis did not answer: leave nothing half-acquired.
            if claim.sent:
                await io.finish(self._undo(io, claim))
            raise

    def _lease(self, claim: Claim, grant: mutex.Grant, policy: conf.Policy, me: object) -> Lease:
        lease = Lease(
            self,
            claim,
            using=policy.using,
            fencing_token=grant.fencing_token,
            acquired_us=grant.acquired_us,
            sent=grant.sent,
            holder=me,
            renew=policy.renew,
            hold_until=grant.sent + (policy.max_hold or float("inf")),
            release_at=policy.release,
        )
        if self._on_lost is not None:
            lease.on_lost(self._on_lost)
        if self._cancel_on_lost:
            assert isinstance(me, asyncio.Task)
            lease.cancellation = Cancellation(me)
        return lease

    async def _undo(self, io: IO, claim: Claim) -> None:
        """Take back what an acquire that was cut short has done, or may still do."""
        claim.doubtful = True
        try:
            await mutex.release(io, claim)
        except LockError as error:
            logger.warning("%r may stay locked for %.3g s: %s", self.name, claim.ttl, error)

    async def release_through(self, io: IO, lease: Lease) -> None:
        if lease.state == LeaseState.RELEASED or not lease.unhold():
            return
        lease.close()
        watchdog.forget(lease)
        lost = lease.lost
        try:
            # Also when it is lost: by its own deadline, it may be there for a moment yet.
            refusal = await mutex.release(io, lease.claim)
        except LockUnavailable:
            if lost is None:
                raise
        except BaseException:
            await io.finish(self._undo(io, lease.claim))
            lease.end()
            raise
        else:
            if lost is None and refusal is not None:
                lost = refusal.error(self.name)
        if lost is not None:
            lease.lose(lost)
            raise lost
        lease.end()

    async def _leave(self, io: IO, lease: Lease, error: BaseException | None) -> None:
        """The block that held `lease` is left, with `error` or without."""
        lease.blocks -= 1
        if lease.release_at == "commit" and (pending := transactions.open_transactions()):
            if error is None:
                lease.check()  # before the commit, while it can still be rolled back
            self._release_after(pending, lease)
            return
        try:
            await self.release_through(io, lease)
        except LockUnavailable as unavailable:
            # What the block did was done under the lock: that is no reason to fail it.
            logger.warning("%r is released later: %s", self.name, unavailable)
            watchdog.release_later(lease)
        except LeaseLost as lost:
            if error is None:
                raise
            if error is not lost:
                error.add_note(str(lost))

    def _release_after(self, pending: list[BaseDatabaseWrapper], lease: Lease) -> None:
        """From here on each of the transactions holds the lease, in place of the block."""
        for _ in pending[1:]:
            lease.hold()
        for connection in pending:
            transactions.at_end(
                connection,
                committed=partial(self._committed, lease),
                # Called by a finalizer, perhaps in the middle of anything: no I/O there.
                dropped=partial(watchdog.release_later, lease),
            )

    def _committed(self, lease: Lease) -> None:
        try:
            run(self.release_through(SyncIO(lease.using), lease))
        except LockUnavailable:
            watchdog.release_later(lease)
        except LeaseLost as lost:
            logger.error("A transaction was committed that %r should protect: %s", self.name, lost)

    # A lease that travels.

    def give_away(self, lease: Lease) -> dict[str, Any]:
        lease.close()
        watchdog.forget(lease)
        lease.end()
        return {
            "kind": "mutex",
            "name": self.name,
            "prefix": lease.claim.keys.index.removesuffix(":index"),
            "using": lease.using,
            "token": lease.token,
            "ttl": lease.ttl,
            "owner": lease.owner,
            "label": lease.label,
            "doubtful": lease.claim.doubtful,
            "fencing_token": lease.fencing_token,
            "acquired_us": round(lease.acquired_at.timestamp() * 1e6),
        }

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Lease:
        lock, lease = cls._restored(fields)
        lock.extend(lease)
        return lock._hold(lease)

    @classmethod
    async def arestored(cls, fields: dict[str, Any]) -> Lease:
        lock, lease = cls._restored(fields)
        await lock.aextend(lease)
        return lock._hold(lease)

    @classmethod
    def _restored(cls, fields: dict[str, Any]) -> tuple[Lock, Lease]:
        lock = cls(fields["name"], using=fields["using"])
        policy = lock.policy()
        claim = Claim(
            keys=Keys.of(fields["prefix"], fields["name"]),
            **{key: fields[key] for key in ("token", "ttl", "owner", "label", "doubtful")},
        )
        grant = mutex.Grant(fields["fencing_token"], fields["acquired_us"], now())
        return lock, lock._lease(claim, grant, policy, label.holder())

    def _hold(self, lease: Lease) -> Lease:
        """This process holds `lease` from now on."""
        _held[lease.using, lease.claim.keys.lock] = lease
        watchdog.watch(lease)
        return lease


restorers["mutex"] = Lock


def refuse_event_loop() -> None:
    """Waiting here would stop the event loop, and with it perhaps the holder."""
    if asyncio._get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            "You cannot wait for a lock in an event loop. Write `async with redis_lock(…)` or "
            "`await lock.aacquire()`."
        )
