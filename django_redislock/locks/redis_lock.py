"""`redis_lock` and the other kinds of lock: context managers, and decorators of every kind of
function. primitives/ explains how they work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Unpack

from ..base import people
from ..base.people import Holder, Holding
from ..base.servers import Servers
from ..lease.lease import Lease
from ..lease.lock import BlockOptions, Lock, OnConflict_co, Options
from ..lease.plan import Plan, plan_of
from ..primitives import mutex, permits
from ..primitives.contract import Sight
from ..primitives.keys import KeysTogether, validate_key, validate_name
from ..settings import conf, kinds
from ..settings.naming import name_maker
from ..settings.validators import validate_flag, validate_limit
from ..transport.ports import PortType
from .decorate import FunctionDecorator

MAX_NAMES = 250
"""With this many names the script blocks Redis for as long as a few thousand plain commands."""
ADVICE = "take all names in one step, at the outer lock"
"""For a thread or task that takes a name which it holds together with other names."""
SHOWN = 3
"""The number of names that are written out for people."""

Names = Iterable[str] | Callable[..., Iterable[str]]


class redis_lock(FunctionDecorator[OnConflict_co], Lock):
    """Run a block or a function in one place at a time, across processes and hosts.

    As a context manager, sync or async, it locks `name` and returns its `Lease`. As a decorator it
    takes a new lease for each call. The name is then made from the arguments: by a template such
    as `"invoice:{invoice.pk}"`, by a function of the arguments, or by default it is the function's
    dotted path.

    Times are seconds. All arguments but the last five have a setting of the same name, which
    decides where the argument is not given; docs/settings.md has a table of both.

    * `using`: the alias of CACHES; by default "default".
    * `ttl`: how long a lease lives without renewal; by default 30.
    * `wait`: how long to wait for the lock; by default 10. 0: try once. None: no limit.
    * `renew`: renew the lease while its holder lives; by default True.
    * `max_hold`: when renewal ends, counted from the acquire; by default never (None).
    * `release`: "exit", the default: the lock is released when the block ends. "commit": when the
      database transaction around it has ended. "warn": as "exit", with a warning if a transaction
      is still open.
    * `on_conflict`: "raise", the default, or "skip": what a decorated function does without the
      lock. A function makes the result from the conflict.
    * `note_ttl`, `keep_note`: how long a note of the holder is kept, by default 7 days; and
      whether it stays after an ordinary end, by default False.
    * `max_resumptions`: how often a note may be inherited in a row; after that, acquiring raises
      `TooManyResumptions`. None, the default: no limit.
    * `unavailable`: if Redis could not be reached for all of `wait`, "raise", the default; "run":
      the block or function runs without the lock, for work that may run twice; "skip": a
      decorated function returns None.
    * `replicas`, `replicas_timeout`: how many replicas must confirm a lease and each renewal,
      and how long they have; by default 0, and 1 second.
    * `after_loss`: when Redis has lost its data, "go", the default, gives the lock to the next
      that asks; "wait" gives it to nobody new for one `ttl`.
    * `timestamp_key`: the key of a `TimestampLock` to hold as well, for as long as old clients
      know no other lock; `{name}` in it stands for the name.
    * `scope`: None leaves the scope, such as a tenant, out of the name; by default the setting
      decides.
    * `label`: where the lock is taken, for people; by default the line of code.
    * `stacklevel`: the line of code that becomes the label; by default 1, the line that takes the
      lock. 2: the line that calls the function with that line.
    * `reentrant`: the thread or task that holds the lock may take it again; by default False.
    * `on_lost`: called with the lease, in a thread of its own, when the lease is lost.
    * `cancel_on_lost`: cancel the asyncio task that holds the lease when it is lost; by default
      False.

    Raises `LockNotAcquired`; `LockUnavailable` if Redis can't be reached; `LockReentered` if this
    very thread or task already holds the lock; and `LeaseLost` at the end of a block whose lease
    was lost.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        timestamp_key: str | None = None,
        **options: Unpack[Options[OnConflict_co]],
    ) -> None:
        self._name = None
        self._configure(options)
        if timestamp_key is not None:
            self._explicit["timestamp_key"] = validate_key(timestamp_key, "timestamp_key")
        self._template = name
        if isinstance(name, str):
            if conf.for_developers():
                people.warn_if_unused(
                    self,
                    f"{self!r} was never used, so it has locked nothing. Write it in a with "
                    f"statement, call its acquire(), or decorate a function with it.",
                )
        elif isinstance(name, type) and not issubclass(name, str):
            raise TypeError(f"redis_lock(…) decorates the methods of {name!r}, not the class")

    @property
    def name(self) -> str:
        """What is locked. A decorator has a name for each call instead."""
        if self._name is None:
            self._used = True
            if self._template is None or callable(self._template):
                raise TypeError(
                    "redis_lock() without a name, or with a function as its name, is for "
                    "decorating functions; elsewhere write redis_lock('invoice:42')"
                )
            self._name = validate_name(self._template)
        return self._name

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            self._used = True
            return super().__getattr__(name)

    def __getstate__(self) -> Any:
        self._used = True  # by its copy, perhaps in another process
        return super().__getstate__()

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._renamed(name, where)


class Semaphore(redis_lock[OnConflict_co]):
    """Run a block or a function in at most `limit` places at a time, across processes and hosts.

    Each holder has a lease of its own. `limit` may change at any time, even while the semaphore is
    held and waited for: each caller is measured by the limit that it gives. Without `limit` it
    comes from `LIMIT` in the settings of the lock.

    Takes the options of `redis_lock`, and raises the same errors. A thread or task may hold
    several permits; `LockReentered` is raised if it asks for one while it holds all of them.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        limit: int | None = None,
        **options: Unpack[Options[OnConflict_co]],
    ) -> None:
        given = {} if limit is None else {"limit": validate_limit(limit, "limit")}
        super().__init__(name, **options)
        self._of_kind("semaphore", **given)


class ReadWriteLock(Generic[OnConflict_co]):
    """Let many read at a time, or one write.

    `read()` and `write()` return locks like `redis_lock`, with the options that are given here.
    They are fair: no caller overtakes an earlier one. So a waiting writer keeps new readers out,
    and the readers that wait behind it get the lock together. `lease.downgrade()` makes a writer a
    reader; a reader that asks to write gets `LockReentered`.
    """

    def __init__(
        self, name: str | Callable[..., str], **options: Unpack[Options[OnConflict_co]]
    ) -> None:
        self._read = redis_lock(name, **options)._of_kind("read")
        self._write = redis_lock(name, **options)._of_kind("write")
        self._read._used = self._write._used = True  # one of them may never be used

    def read(self) -> redis_lock[OnConflict_co]:
        """Return the lock for reading."""
        return self._read

    def write(self) -> redis_lock[OnConflict_co]:
        """Return the lock for writing."""
        return self._write

    if not TYPE_CHECKING:

        def _refuse(self, *_, **__):
            kind = type(self).__name__
            raise TypeError(f"write {kind}(…).read() or {kind}(…).write()")

        __enter__ = __exit__ = __aenter__ = __aexit__ = __call__ = _refuse

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._read._template!r}>"


class Redlock(redis_lock[OnConflict_co]):
    """A lock that survives the loss of a minority of its servers.

    `using` names three or five aliases of CACHES, whose primaries fail independently of each
    other. Without it, the entry of this name in `LOCKS` names them. It is used like `redis_lock`,
    and takes the same options except `replicas`.

    It has no queue and no fencing token: docs/redlock.md says what it promises, and what it
    doesn't. Raises what `redis_lock` raises; `LockUnavailable` if no majority can be asked.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        using: Sequence[str] | None = None,
        **options: Unpack[BlockOptions[OnConflict_co]],
    ) -> None:
        if "replicas" in options:
            raise TypeError("a Redlock has no replicas: its servers are all primaries")
        if "unavailable" in options:
            raise TypeError("a Redlock has no unavailable: catch LockUnavailable")
        if isinstance(using, str):
            raise TypeError(f"using must be a list of aliases of CACHES, not {using!r}")
        given = {} if using is None else {"using": Servers.of(using)}
        super().__init__(name, **options)
        self._of_kind("redlock", unavailable="raise", **given)


class TimestampLock(redis_lock[OnConflict_co]):
    """A lock whose key says when it ends, for fleets whose old clients know no other.

    Its name is its key in Redis, verbatim, since old clients know it by that key. `timestamp_key`
    is for a key that is no valid name. With `fractions` the value has fractions of a second, which
    clients that expect an integer can't read. It is used like `redis_lock`, and takes the same
    options.

    It has no queue and no fencing token: docs/timestamp-lock.md says what it promises, and what
    it doesn't. Raises what `redis_lock` raises.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        fractions: bool = False,
        timestamp_key: str | None = None,
        **options: Unpack[Options[OnConflict_co]],
    ) -> None:
        validate_flag(fractions, "fractions")
        super().__init__(name, timestamp_key=timestamp_key, **options)
        self._of_kind("timestamp", fractions=fractions)


class MultiLock(FunctionDecorator[OnConflict_co], Lock):
    """Lock several names in one step: all of them, or none.

    Like `redis_lock` it is a context manager, sync or async, and a decorator. The names of a
    decorator are templates over the arguments, or a function of the arguments that returns them.
    `Options` lists the other options. A name that is given twice counts once, and the order means
    nothing.

    Each name is held as `redis_lock` of that name would hold it. A waiter holds none of them.

    `lease.fencing_tokens` has a fencing token for each name. Raises what `redis_lock` raises;
    `LockNotAcquired` names one of the names that somebody else holds.
    """

    def __init__(self, names: Names, **options: Unpack[Options[OnConflict_co]]) -> None:
        self._names: tuple[str, ...] | None = None
        self._template = names if callable(names) else _listed(names)
        self._configure(options)

    @property
    def names(self) -> tuple[str, ...]:
        """What is locked, sorted. A decorator has names for each call instead."""
        if self._names is None:
            if callable(self._template):
                raise TypeError(
                    "MultiLock() with a function as its names is for decorating functions; "
                    "elsewhere write MultiLock(['account:1', 'account:2'])"
                )
            self._names = _validated(self._template)
        return self._names

    @property
    def name(self) -> str:
        """All names in one text, for people and for the entries of `LOCKS`."""
        return _in_one_text(self.names)

    def _name_maker(self, function: Callable[..., Any]) -> Callable[..., tuple[str, ...]]:
        if callable(self._template):
            names_of = self._template
            return lambda *args, **kwargs: _validated(_listed(names_of(*args, **kwargs)))
        makers = [name_maker(template, function) for template in self._template]
        return lambda *args, **kwargs: _validated([make(*args, **kwargs) for make in makers])

    def _lock_for(self, name: tuple[str, ...], where: str) -> Lock:
        lock = self._copy(MultiLock, where)
        lock._template = lock._names = name
        return lock

    def _plan(self) -> Plan:
        plan = super()._plan()
        own = [conf.policy(name, {}) for name in self.names] if conf.current().locks.exact else []
        for name, policy in zip(self.names, own, strict=False):
            if kinds.primitive(policy) is not mutex:
                what = "to be migrated" if policy.kind == "mutex" else f"a {policy.kind}"
                raise ValueError(f"MultiLock takes plain locks; LOCKS has {name!r} as {what}")
        if not plan.guarded and any(policy.after_loss == "wait" for policy in own):
            # One name that is guarded is enough: it must not be taken in another way.
            return plan_of(self.name, {**self._explicit, "after_loss": "wait"})
        return plan

    def _keys(self, plan: Plan | None = None) -> KeysTogether:  # noqa: ARG002
        said = {"scope": None} if "scope" in self._explicit else {}
        parts = [plan_of(name, said).keys(name) for name in self.names]
        keys = KeysTogether.of(conf.prefix(), _in_one_text([its.name for its in parts]))
        keys.parts = tuple(parts)
        return keys

    def _held(self, plan: Plan, keys: Any, me: Holding, wait: float | None) -> Lease | None:
        there = [plan.register.held(its.lock, me) for its in keys.parts]
        mine = [
            lease
            for leases in there
            for lease in leases
            # The script refuses a semaphore or a read-write lock as another kind.
            if not isinstance(lease._claim.primitive, permits.Permits)
        ]
        own = next((lease for lease in mine if lease._lifetime.alive), None)
        if own is not None and not all(own in leases for leases in there):
            self._refuse_own(own, wait, ADVICE)
            return None
        return self._held_already(plan, [own] if own else [], wait)

    async def _look(self, port_type: PortType) -> list[Sight]:
        port = port_type(self._plan().server)
        return [sight for keys in self._keys().parts for sight in await mutex.holders(port, keys)]

    async def _clear(self, *_: object) -> Holder | None:
        raise TypeError(
            "The names of a MultiLock may have several holders. Clear the name that you mean, "
            f"with redis_lock({self.names[0]!r}).clear(reason=…)"
        )


def _in_one_text(names: Sequence[str]) -> str:
    others = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + others


def _listed(names: Any) -> list[Any]:
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(
            f"names must be a list of names, such as ['account:1', 'account:2'], not {names!r}"
        )
    listed = list(names)
    if not listed:
        raise ValueError("names is empty; write what is to be locked, such as ['account:1']")
    return listed


def _validated(names: Iterable[Any]) -> tuple[str, ...]:
    """Return the names sorted, each of them once."""
    once = tuple(sorted({validate_name(name) for name in names}))
    if len(once) > MAX_NAMES:
        raise ValueError(f"a MultiLock has up to {MAX_NAMES} names, not {len(once)}")
    return once
