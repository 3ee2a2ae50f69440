"""`MultiLock`: several names in one step, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

from ..base import label
from ..base.holder import Holder
from ..lease.lease import Lease
from ..lease.lock import Lock, OnConflict_co, Options
from ..lease.watchdog import held
from ..primitives import multi, mutex, permits
from ..primitives.contract import Primitive, Sight
from ..primitives.keys import Keys, KeysTogether, validate_name
from ..settings import conf, kinds
from ..settings.naming import name_maker
from ..settings.policy import Policy
from ..transport.ports import AsyncPort, SyncPort
from ..transport.server import Server, clustered, server_of
from .function_decorator import FunctionDecorator

MAX_NAMES = 250
"""With this many names the script blocks Redis for as long as a few thousand plain commands."""
ADVICE = "take all names in one step, at the outer lock"
"""For a thread or task that takes a name which it holds together with other names."""
SHOWN = 3
"""The number of names that are written out for people."""

Names = Iterable[str] | Callable[..., Iterable[str]]


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

    def _primitive(self, policy: Policy) -> Primitive:  # noqa: ARG002
        for name in self.names:
            if kinds.primitive(own := conf.policy(name, {})) is not mutex:
                what = "to be migrated" if own.kind == "mutex" else f"a {own.kind}"
                raise ValueError(f"MultiLock takes plain locks; LOCKS has {name!r} as {what}")
        return multi

    def _guarded(self, policy: Policy) -> bool:
        # One name that is guarded is enough: it must not be taken in another way.
        own = [conf.policy(name, {}).after_loss for name in self.names]
        after_loss = "wait" if "wait" in own else policy.after_loss
        return kinds.guarded(policy._replace(after_loss=after_loss), clustered)

    def _keys(self, policy: Policy | None = None) -> KeysTogether:  # noqa: ARG002
        said = {"scope": None} if "scope" in self._explicit else {}
        parts = [kinds.keys(conf.policy(name, said), name, clustered) for name in self.names]
        keys = KeysTogether.of(conf.prefix(), _in_one_text([its.name for its in parts]))
        keys.parts = tuple(parts)
        return keys

    def _parts(self, keys: Any) -> tuple[Keys, ...]:
        return keys.parts  # type: ignore[no-any-return]

    def _held(
        self,
        server: Server,
        keys: Any,
        primitive: Primitive,
        me: label.Holding,
        wait: float | None,
    ) -> Lease | None:
        there = [held(server, its.lock, me) for its in keys.parts]
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
        return self._held_already(primitive, [own] if own else [], me, wait)

    async def _look(self, port_type: type[SyncPort | AsyncPort]) -> list[Sight]:
        port = port_type(server_of(self._policy().using))
        return [sight for keys in self._keys().parts for sight in await multi.holders(port, keys)]

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
