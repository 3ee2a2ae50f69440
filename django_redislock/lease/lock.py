"""Lock: a name and a policy. Acquiring it returns a lease, the proof of holding it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Self, TypedDict, TypeVar, Unpack

from django.core.exceptions import SynchronousOnlyOperation

from ..base import people, process, tokens
from ..base.exceptions import LockNotAcquired, LockReentered, LockUnavailable
from ..base.people import Holder, Holding
from ..primitives import mutex, permits
from ..primitives.contract import Claim, Grant, Primitive, Sight, run
from ..primitives.keys import Keys, validate_name
from ..settings import conf
from ..settings.policy import ARGUMENT_VALIDATORS, Policy
from ..settings.validators import (
    WAIT,
    refuse_unknown,
    validate_flag,
    validate_label,
    validate_on_lost,
    validate_operator,
    validate_stacklevel,
    validate_wait,
)
from ..transport.ports import AsyncPort, PortType, SyncPort
from . import claims, notes, order, transactions
from .claims import beside_orm
from .holds import Cancellation, Entered, Hold, Running, innermost, last
from .joining import of_transaction
from .lease import Lease
from .lifetime import A_SECOND
from .plan import Plan, plan_of
from .unlocked import instead, unlocked_here

_OWNED = (
    "lease.state says whether we hold it, for the lease that acquire() returns; locked() of the "
    "lock says whether anybody does."
)
_EXTENDED = "A lease is renewed while its holder lives; lease.extend() does it by hand."
_CLEARED = "Write lease.release(), or clear(reason=…) to take the lock away from its holder."
_OTHER_NAMES = {
    "owned": _OWNED,
    "is_held": _OWNED,
    "is_owned": _OWNED,
    "reacquire": _EXTENDED,
    "refresh": _EXTENDED,
    "renew": _EXTENDED,
    "reset": _CLEARED,
    "unlock": _CLEARED,
    "get_owner_id": "holder() says who holds it.",
}


def no_attribute(kind: str, name: str) -> AttributeError:
    """Return the error for an attribute that a lock of this kind does not have."""
    # Other libraries have release() and extend() on the lock.
    if not name.startswith("_") and hasattr(Lease, name):
        return AttributeError(
            f"{kind} has no {name}: its lease has. acquire() returns the lease, and so does "
            f"`with {kind}(…) as lease`."
        )
    if name in _OTHER_NAMES:
        return AttributeError(f"{kind} has no {name}. {_OTHER_NAMES[name]}")
    return AttributeError(f"{kind!r} object has no attribute {name!r}")


L = TypeVar("L", bound="Lock")
Got = Lease | LockNotAcquired | LockUnavailable
"""What comes of an acquire."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OnConflict_co = TypeVarWithDefault(
        "OnConflict_co",
        bound=Literal["raise", "skip"] | Callable[[LockNotAcquired], Any],
        default=Literal["raise"],
        covariant=True,
    )
    """The type of `on_conflict`. It tells type checkers what a decorated function returns."""
else:
    OnConflict_co = TypeVar("OnConflict_co", covariant=True)

UNSET: Any = object()
"""Not given: the settings decide."""


UPGRADE = (
    "and a reader can't become a writer, since two that try would wait for each other. Release it "
    "before you write, and read again under the write lock; or take .write() from the beginning, "
    "and lease.downgrade() when all is written"
)
"""The advice for a reader that wants to write."""
HANDED_ON = (
    "if another thread works under that lease, write `with lease:` there; if this one does, write "
    "reentrant=True"
)
"""The advice for a thread that has a lease and runs no block under it."""


class LeaseOptions(TypedDict, total=False):
    """The options of all locks and views. All times are seconds.

    All but the last two can be set in `REDISLOCK`, too.
    """

    ttl: float
    """How long a lease lives without renewal."""
    wait: float | None
    """How long to wait for the lock; 0: try once, None: no limit."""
    renew: bool
    """Extend the lease as long as its holder lives."""
    max_hold: float | None
    """When renewal ends, counted from the acquire; None: never."""
    scope: None
    """None: the name has no scope, whatever the setting `SCOPE` says."""
    label: str
    """Where the lock is taken, for people; by default the line of code."""
    on_lost: Callable[[Lease], object]
    """Called with the lease, in a thread of its own, when it is lost."""


class ServerOptions(LeaseOptions, total=False):
    """The options of a lock on one server. All can be set in `REDISLOCK`, too."""

    using: str
    """An alias of CACHES that leads to a Redis."""
    replicas: int
    """The number of replicas that have to confirm the lease, and each renewal of it."""
    replicas_timeout: float
    """How long replicas have to confirm, before the lease is asked for again or given up."""
    after_loss: Literal["go", "wait"]
    """What becomes of the lock when Redis has lost its data: `"go"`, whoever asks gets it;
    `"wait"`, nobody new gets it for a `ttl`, and a holder that is still there keeps it. Only for a
    mutex."""


class BlockOptions(LeaseOptions, Generic[OnConflict_co], total=False):
    """The options of blocks and decorated functions. The first two can be set in `REDISLOCK`,
    too."""

    release: Literal["exit", "commit", "warn"]
    """When a block releases: when it is left, or when the database transaction around it has
    been committed or rolled back. `"warn"` is `"exit"` with an `EarlyReleaseWarning` if a database
    transaction is open when the block is left."""
    # The second type only tells pyright the type of a lambda's argument.
    on_conflict: OnConflict_co | Callable[[LockNotAcquired], Never]
    """What a decorated function does without the lock: raise, return None, or return what a
    function of the conflict returns."""
    reentrant: bool
    """The thread or task that holds the lock may take it again."""
    cancel_on_lost: bool
    """Cancel the asyncio task that holds the lease when it is lost; its block then raises
    `LeaseLost`."""
    stacklevel: int
    """The line of code that becomes the label: 1 is the one that takes the lock, 2 the one that
    calls the function with that line, and so on, as in `warnings.warn`."""


class Options(ServerOptions, BlockOptions[OnConflict_co], total=False):
    """All options of `redis_lock` besides the name."""

    note_ttl: float
    """How long a note is kept after it was written."""
    keep_note: bool
    """Keep the note after an ordinary end, too."""
    max_resumptions: int | None
    """How often a note may be inherited in a row; after that, acquiring raises
    `TooManyResumptions`. None: no limit."""
    # A decorated function that is skipped returns None, as with on_conflict="skip".
    unavailable: Literal["raise", "run"] | OnConflict_co
    """What happens if Redis could not be reached for all of `wait`: `"raise"`; `"run"`, the block
    or the function runs without the lock; or `"skip"`, a function returns None."""


class Lock(Entered):
    """A name and a policy: immutable, reusable, safe to share between threads and tasks.

    Arguments that are not given come from the settings, when the lock is acquired.
    All times are seconds.
    """

    # What most locks have alike is kept in the class.
    _reentrant = _cancel_on_lost = False
    _label = _advice = ""
    _stacklevel = 1
    _on_lost: Callable[[Lease], object] | None = None
    _algorithm: Callable[[Plan], Primitive] | None = None
    """Returns what one attempt has in place of the primitive of its kind."""

    def __init__(self, name: str, **options: Unpack[Options[Any]]) -> None:
        self._template: str | Callable[..., str] | None = name
        self._name: str | None = validate_name(name)
        self._configure(options)

    def _configure(self, options: Options[Any]) -> None:
        self._explicit: dict[str, Any] = {}
        self._blocks: Running[Hold, Lease] = Running()
        """The blocks that were entered and not left. The lease of a block may be lost by now, so
        that the watchdog has forgotten it."""
        if options:
            given = dict[str, Any](options)
            for field in options:
                if validate := ARGUMENT_VALIDATORS.get(field):
                    self._explicit[field] = validate(given.pop(field), field)
            if given:
                self._read_others(given)

    def _read_others(self, given: dict[str, Any]) -> None:
        """Read the arguments that are no settings."""
        self._reentrant = validate_flag(given.pop("reentrant", False), "reentrant")
        self._cancel_on_lost = validate_flag(given.pop("cancel_on_lost", False), "cancel_on_lost")
        self._label = validate_label(given.pop("label", ""))
        self._stacklevel = validate_stacklevel(given.pop("stacklevel", 1))
        on_lost = given.pop("on_lost", None)
        self._on_lost = None if on_lost is None else validate_on_lost(on_lost)
        refuse_unknown(given, type(self).__name__)

    def _of_kind(self, kind: str, **fixed: Any) -> Self:
        """Make it a lock of that kind, with these values, whatever the settings say, and return
        it."""
        self._explicit |= {"kind": kind, **fixed}
        return self

    def _recording(
        self, advice: str = "leave the inner block out, or give it another name"
    ) -> Self:
        """Make it the lock of work that is recorded, with this advice: without Redis nobody knows
        what was done."""
        return self._of_kind("mutex", unavailable="raise")._advising(advice)

    def _advising(self, advice: str) -> Self:
        """Let its `LockReentered` say so, and return it: this is the lock of something that is not
        called with reentrant=True. `{name!r}` in the advice becomes the name."""
        self._advice = advice
        return self

    @property
    def name(self) -> str:
        """What is locked."""
        assert self._name is not None
        return self._name

    def _renamed(self, name: str, default_label: str) -> Lock:
        """Return a lock of the same policy for one call of a decorated function."""
        lock = self._copy(Lock, default_label)
        lock._template = lock._name = validate_name(name)
        return lock

    def _copy(self, kind: type[L], default_label: str) -> L:
        lock = object.__new__(kind)
        lock.__dict__.update(self.__dict__)
        lock._label = self._label or default_label
        lock._blocks = Running()
        return lock

    def __repr__(self) -> str:
        options = "".join(f", {field}={value!r}" for field, value in self._explicit.items())
        return f"<{type(self).__name__} {self._template!r}{options}>"

    def _plan(self) -> Plan:
        """Return what the arguments and the settings mean right now."""
        return plan_of(self.name, self._explicit)

    def _policy(self) -> Policy:
        return conf.policy(self.name, self._explicit)

    # The public twins.

    def acquire(
        self,
        wait: float | None = UNSET,
        *,
        steal: bool = False,
        reason: str = "",
        **unknown: object,
    ) -> Lease | None:
        """Return a `Lease`, or None if somebody else holds the lock for all of `wait`, or if Redis
        is away and `unavailable` is `"skip"`. So look at the result before you write
        `with lease:`, or write `with redis_lock(…)`, which raises.

        With `steal=True` and a `reason`, the lock is taken away from its holder, who gets
        `LeaseRevoked` with that reason as soon as it would learn of a loss, and works on until
        then. Waiters keep their order behind the thief. Only for a mutex of one name. Raises
        `LeaseRevoked` if another thief takes it at the same moment.

        Raises `LockUnavailable`, and `LockReentered` if this thread or task would wait for itself,
        or runs a block under the lock.
        """
        refuse_unknown(unknown, "acquire", WAIT)
        refuse_event_loop(self)
        why = self._reason(wait, steal, reason)
        result = run(self._attempt(SyncPort, wait, whole=True, reason=why))
        return result if isinstance(result, Lease) else None

    async def aacquire(
        self,
        wait: float | None = UNSET,
        *,
        steal: bool = False,
        reason: str = "",
        **unknown: object,
    ) -> Lease | None:
        """`acquire` for coroutines."""
        refuse_unknown(unknown, "aacquire", WAIT)
        why = self._reason(wait, steal, reason)
        result = await self._attempt(AsyncPort, wait, whole=True, reason=why)
        return result if isinstance(result, Lease) else None

    def _reason(self, wait: object, steal: object, reason: object) -> str:
        """Return why the lock is stolen; "": it is not."""
        if steal is False and reason == "":  # as in most calls
            return ""
        _, why = validate_operator("", reason)
        if validate_flag(steal, "steal") is not bool(why):
            raise TypeError(
                "write both, acquire(steal=True, reason='…'); the holder sees the reason"
            )
        if steal and wait is not UNSET:
            raise TypeError("steal=True does not wait: leave wait= out")
        if steal and (self._plan().primitive is not mutex or self._keys().parts):
            raise TypeError(f"{self!r} can't be stolen: only a mutex of one name can")
        return why

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise no_attribute(type(self).__name__, name)

    def holder(self) -> Holder | None:
        """Return who holds the lock now, in this or any other process, or None. Of several
        holders: the one whose lease ends first."""
        return run(self._holder(SyncPort))

    async def aholder(self) -> Holder | None:
        """`holder` for coroutines."""
        return await self._holder(AsyncPort)

    def holders(self) -> list[Holder]:
        """Return all who hold the lock now, up to 1000, in the order in which their leases end."""
        return [sight.holder for sight in run(self._look(SyncPort))]

    async def aholders(self) -> list[Holder]:
        """`holders` for coroutines."""
        return [sight.holder for sight in await self._look(AsyncPort)]

    def locked(self) -> bool:
        """Return whether anybody holds the lock now. It may have changed when you read this: to
        act on it, take the lock."""
        return run(self._holder(SyncPort)) is not None

    async def alocked(self) -> bool:
        """`locked` for coroutines."""
        return await self._holder(AsyncPort) is not None

    def clear(self, *, reason: str, by: str = "") -> Holder | None:
        """Take the lock away from all its holders, and hand it to the next waiter.

        The old holder gets `LeaseRevoked`, with `by` and `reason`, at its next renewal or
        when it releases; until then it goes on working. Returns who it was, or None if
        the lock was free, or changed hands at that moment.
        """
        return run(self._clear(SyncPort, by, reason))

    async def aclear(self, *, reason: str, by: str = "") -> Holder | None:
        """`clear` for coroutines."""
        return await self._clear(AsyncPort, by, reason)

    def __enter__(self) -> Lease:
        refuse_event_loop(self)
        if self._explicit:
            self._refuse_skips()
        return self._entering(run(self._attempt(SyncPort)))

    async def __aenter__(self) -> Lease:
        if self._explicit:
            self._refuse_skips()
        return self._entering(await self._attempt(AsyncPort))

    def _leaving(self) -> tuple[Hold, Lease]:
        hold, me = innermost(), people.holder()
        if hold is None or hold.by is not me or hold not in self._blocks:
            hold = last([*self._blocks], me)
        return hold, self._blocks[hold]

    def _left(self, hold: Hold | None) -> None:
        if hold is not None:
            self._blocks.pop(hold, None)

    def _refuse_skips(self) -> None:
        said = self._explicit
        skips = "unavailable" if said.get("unavailable") == "skip" else "on_conflict"
        if said.get(skips, "raise") != "raise":
            raise TypeError(
                f"{skips}= is for decorated functions: the body of a with statement can't be "
                f"skipped. Write: lease = redis_lock(…).acquire(), and `with lease:` if it is "
                f"not None."
            )

    def _entering(self, lease: Got) -> Lease:
        if not isinstance(lease, Lease):
            raise lease
        hold = lease._enter()
        self._blocks[hold] = lease  # no call, so no exception from outside comes before the block
        return lease

    def _primitive(self, plan: Plan) -> Primitive:
        """Return the primitive of one attempt."""
        return plan.primitive if self._algorithm is None else self._algorithm(plan)

    def _keys(self, plan: Plan | None = None) -> Keys:
        return (plan or self._plan()).keys(self.name)

    # The coroutines that the twins share.

    async def _holder(self, port_type: PortType) -> Holder | None:
        sights = await self._look(port_type)
        return sights[0].holder if sights else None

    async def _look(self, port_type: PortType) -> list[Sight]:
        plan = self._plan()
        return await self._primitive(plan).holders(port_type(plan.server), plan.keys(self.name))

    async def _clear(self, port_type: PortType, by: str, reason: str) -> Holder | None:
        by, reason = validate_operator(by, reason)
        first = seen = await self._look(port_type)
        plan = self._plan()
        server = plan.server
        port, primitive, keys = port_type(server), self._primitive(plan), plan.keys(self.name)
        began = first[0].holder.seen_at if first else None
        cleared = False
        for _ in range(permits.LOOKS):
            meant = [sight for sight in seen if not sight.holder.came_after(began)]
            if not meant:
                break
            cleared |= await claims.clear(port, primitive, keys, server, meant, by, reason)
            if len(seen) < permits.SHOWN:
                break
            seen = await self._look(port_type)
        return first[0].holder if cleared else None

    async def _attempt(
        self,
        port_type: PortType,
        wait: float | None = UNSET,
        *,
        whole: bool = False,
        reason: str = "",
    ) -> Got:
        """Acquire the lock, or hold once more the lease that this thread or task has. Only a
        lease that is `whole` may be given to the user without a block. With a reason, steal it.
        An error that is returned is to be skipped, or raised."""
        process.notice_fork()
        plan = self._plan()
        policy, server = plan.policy, plan.server
        wait = policy.wait if wait is UNSET else validate_wait(wait)
        me = people.holder()
        if self._cancel_on_lost and not isinstance(me, asyncio.Task):
            raise TypeError(
                "cancel_on_lost=True needs an asyncio task to cancel. In a thread, pass "
                "on_lost= or call lease.check() between steps."
            )
        if policy.release == "commit":
            # Raises if the end of a transaction can't be known.
            await beside_orm(port_type(server), transactions.open_transactions)
        keys, primitive = self._keys(plan), self._primitive(plan)
        if self._reentrant and not reason and (outer := unlocked_here(plan, keys, me)):
            return outer
        known = plan.register.knows(keys)
        if known or keys.timestamp_key:
            mine = self._held(plan, keys, me, wait)
            if mine is not None and self._hold_again(mine, policy, me):
                return mine
            if port_type is AsyncPort and (lease := await of_transaction(self, plan, keys, me)):
                return lease
        claim = Claim(
            keys=keys,
            token=tokens.new(),
            ttl=plan.ttl,
            owner=people.owner(me),
            label=(
                people.clean(self._label)
                if self._label
                else people.of_caller(self._stacklevel, 3 if port_type is SyncPort else 2)
            ),
            primitive=primitive,
            guarded=plan.guarded,
        )
        claim.renewed = plan.renewed
        if wait != 0 and (policy.lock_order != "off" or order.testing is not None):
            order.check(claim, server, me, policy.lock_order)
        hold = partial(self._hold, plan, claim, me, whole)
        port: SyncPort | AsyncPort | None = None
        if plan.straight and not known and port_type is SyncPort and not reason:
            lease, port = claims.take(server, plan.terms, claim, wait, hold)
            if lease is not None:
                return lease
        port = port or port_type(server, terms=plan.terms)
        try:
            return await claims.acquire(port, server, claim, wait, hold, reason)
        except LockUnavailable as error:
            if policy.unavailable == "raise" or not error.away or reason:
                raise
            return await instead(port, plan, claim, me, error)

    def _hold(self, plan: Plan, claim: Claim, me: Holding, whole: bool, grant: Grant) -> Lease:
        """Return the lease of a claim that was granted: a young one, if it may be that."""
        if claim.found is not None:
            notes.refuse_poisoned(claim, plan.policy)
        hold = Hold(me)
        lease = Lease(plan.server, claim, grant, plan.policy, hold, plan.watchdog, young=True)
        noticed = whole or self._on_lost is not None or self._cancel_on_lost
        plain = claim.short or (claim.primitive is mutex and claim.found is None)
        if plain and plan.young and not noticed:
            plan.register.add_young(lease)
            plan.watchdog.look_by(grant.sent + A_SECOND)  # and take notice of it
            return lease
        if self._on_lost is not None:
            lease._callbacks.append(self._on_lost)
        if self._cancel_on_lost and isinstance(me, asyncio.Task):
            hold.cancellation = Cancellation(me)
        lease._complete()
        return lease

    def _hold_again(self, lease: Lease, policy: Policy, me: Holding) -> bool:
        """Let this thread or task hold its lease once more. Return False if it is being released
        already."""
        hold = Hold(me)
        hold.on_lost = self._on_lost
        try:
            cancels = any(one.cancellation for one in lease._holds.copy())
            if self._cancel_on_lost and not cancels and isinstance(me, asyncio.Task):
                hold.cancellation = Cancellation(me)
            if policy.release == "commit":
                lease._policy = lease._policy._replace(release="commit")
            if not lease._add(hold):
                return False
            if lease._lifetime.error is not None:  # since a moment ago
                lease._call_back()
            return True
        except BaseException:
            lease._abandon(hold)
            raise

    def _refuse_own(self, lease: Lease, wait: float | None, advice: str = "") -> None:
        """Raise `LockReentered` for a lease of this thread or task.

        Not if it tries once, which is no waiting, and no block has entered the lease: another
        thread may be working under it.
        """
        in_block = any(hold.entered for hold in lease._holds.copy())
        if wait != 0 or in_block:
            raise LockReentered(self.name, lease.label, advice or ("" if in_block else HANDED_ON))

    def _held(self, plan: Plan, keys: Keys, me: Holding, wait: float | None) -> Lease | None:
        """Return the lease of this thread or task that is to be held once more, or None if it may
        take another one. Raises `LockReentered`, also if it would wait for its own timestamp
        key."""
        mine = self._held_already(plan, plan.register.held(keys.lock, me), wait)
        if mine is not None:
            return mine
        lock = keys.of_timestamp().lock if keys.timestamp_key else keys.lock
        for lease in plan.register.held(lock, me):
            its = lease._claim.keys
            another = its.lock != keys.lock and (keys.timestamp_key or its.timestamp_key)
            if another and lease._lifetime.alive:
                advice = f"it has its timestamp key {lock!r} in common with {its.name!r}: take one"
                self._refuse_own(lease, wait, advice)
        return None

    def _held_already(self, plan: Plan, leases: list[Lease], wait: float | None) -> Lease | None:
        """Do `_held` for the leases on one name, of this thread or task."""
        primitive = plan.primitive
        mine = [
            lease
            for lease in leases
            if lease._lifetime.alive and _alike(lease._claim.primitive, primitive)
        ]
        if not mine:
            return None
        last = mine[-1]
        if primitive is permits.WRITE and last._claim.primitive is permits.READ:
            self._refuse_own(last, wait, UPGRADE)
            return None
        if self._reentrant:
            return last
        unused = [lease for lease in mine if not lease._holds.blocks]  # a transaction holds it
        if unused:
            return unused[-1]
        if primitive.kind != "semaphore" or len(mine) >= getattr(primitive, "limit", 0):
            self._refuse_own(last, wait, self._advice.format(name=self.name))
        return None


def _alike(one: Primitive, other: Primitive) -> bool:
    """Return whether a lease of the one kind can be held again as the other. The server refuses
    all other kinds."""
    both = {one.kind, other.kind}
    return len(both) == 1 or both == {permits.READ.kind, permits.WRITE.kind}


def refuse_event_loop(lock: Lock | None = None) -> None:
    """Raise `SynchronousOnlyOperation` in an event loop: waiting would stop the loop, and perhaps
    the holder with it."""
    if asyncio._get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        what = "a lock" if lock is None else repr(lock.name)
        raise SynchronousOnlyOperation(
            f"You cannot wait for {what} in an event loop. Write `async with redis_lock(…)` or "
            f"`await lock.aacquire()`."
        )
