"""`redis_lock`: a lock as a context manager, and as a decorator of every kind of function."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from ..lease.lock import Lock, OnConflict_co, Options
from ..primitives.keys import validate_key, validate_name
from ..settings import conf
from .function_decorator import FunctionDecorator


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

    Raises `LockNotAcquired`; `LockUnavailable` if Redis can't be asked; `LockReentered` if this
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
                # Not __del__: Python would drop a signal's exception that comes while it runs.
                finalizer = weakref.finalize(self, _warn_if_unused, self.__dict__, repr(self))
                finalizer.atexit = False
        elif isinstance(name, type) and not issubclass(name, str):
            raise TypeError(f"redis_lock(…) decorates the methods of {name!r}, not the class")

    _template: Any = None

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

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._renamed(name, where)


def _warn_if_unused(attributes: dict[str, Any], lock: str) -> None:
    """Warn about a lock that is gone, and had these attributes."""
    if not attributes.get("_used") and not sys.is_finalizing():
        warnings.warn(
            f"{lock} was never used, so it has locked nothing. Write it in a with "
            f"statement, call its acquire(), or decorate a function with it.",
            RuntimeWarning,
            stacklevel=3,
        )
