"""`redis_lock`: a lock as a context manager, and as a decorator of every kind of function."""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.conf import settings

from ..base import label
from ..base.exceptions import LockNotAcquired
from ..lease.current import Steps
from ..lease.lease import Lease
from ..lease.lock import UNSET, Lock, Options, call, refuse_event_loop
from ..primitives.keys import validate_key, validate_name
from ..settings.naming import name_maker
from ..transport.ports import AsyncPort, SyncPort, run

F = TypeVar("F", bound=Callable[..., Any])

LockFor = Callable[[tuple[Any, ...], dict[str, Any]], Lock]
"""The lock of one call of a function."""


class FunctionDecorator:
    """Decorates functions of every kind, with a lock for each call of them."""

    _template: Any
    _prefix = ""
    """Plain text that the names begin with."""

    def __call__(self, *functions: F, **nothing: object) -> F:
        title = type(self).__name__
        function = functions[0] if len(functions) == 1 and not nothing else None
        if isinstance(function, classmethod | staticmethod):
            return type(function)(self(function.__func__))
        if function is None or not (callable(function) or _started_as(function)):
            if callable(self._template):
                raise TypeError(f"{title} needs its parentheses: @{title}() or @{title}('…')")
            raise TypeError(f"{title}(…) decorates one function, not {functions!r}")
        if isinstance(function, type):
            raise TypeError(f"{title}() decorates the methods of {function!r}, not the class")
        _refuse_objects(function, title)

        make_name = self._name_maker(function)
        where = label.of_function(function)

        def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            return self._lock_for(make_name(*args, **kwargs), where)

        if inspect.isasyncgenfunction(function):
            kind = "asynchronous generator"
        elif iscoroutinefunction(function):
            kind = "coroutine"
        elif inspect.isgeneratorfunction(function):
            kind = "generator"
        else:
            kind = "function"
        return wraps(function)(self._wrap(kind, function, lock_for))  # type: ignore[return-value]

    def _name_maker(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What makes of the arguments of a call what `_lock_for` takes."""
        return name_maker(self._template, function, prefix=self._prefix)

    def _lock_for(self, name: Any, where: str) -> Lock:
        raise NotImplementedError

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
        raise NotImplementedError


_STARTERS = ("delay", "enqueue", "apply_async", "send")
"""Methods by which a task queue starts what was decorated: of Celery, RQ and Huey, django.tasks,
Dramatiq."""


def _started_as(function: object) -> str:
    """By which method a task queue starts it; "": it is no task."""
    return next((name for name in _STARTERS if callable(getattr(function, name, None))), "")


def _refuse_objects(function: object, title: str) -> None:
    """Raise `TypeError` for what can be started in another way than by being called: the lock
    would be taken in the one way, and not in the other."""
    if starter := _started_as(function):
        raise TypeError(
            f"{title}(…) decorates a function, and {function!r} is a task: {starter}() would run "
            f"it without the lock. Write @{title}(…) below the decorator that makes the task, "
            f"next to the function."
        )
    if not (inspect.isroutine(function) or isinstance(function, partial)):
        raise TypeError(
            f"{title}(…) decorates a function, not {function!r}. Write @{title}(…) above "
            f"the method of its class that does the work."
        )


class redis_lock(FunctionDecorator, Lock):
    """Run a block or a function in one place at a time, across processes and hosts.

    As a context manager, sync or async, it locks `name` and gives its `Lease`. As a
    decorator it takes a new lease for each call, of a name made from the arguments: a
    template such as `"invoice:{invoice.pk}"`, a function of the arguments, or by default the
    function's dotted path. `Options` lists what else it takes; what is not given comes from
    `REDISLOCK` in the settings.

    `timestamp_key` is the key of a `TimestampLock` that is taken with it, for as long as old
    clients know no other lock; `{name}` in it stands for the name.

    Raises `LockNotAcquired`; `LockUnavailable` when Redis can't be asked; `LockReentered`
    when this very thread or task holds the lock already; and `LeaseLost` at the end of a
    block whose lease was lost.
    """

    def __init__(
        self,
        name: str | Callable[..., str] | None = None,
        *,
        timestamp_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._name = None
        self._configure(options)
        if timestamp_key is not None:
            self._explicit["timestamp_key"] = validate_key(timestamp_key, "timestamp_key")
        self._template = name
        if isinstance(name, str) and _watched():
            # No __del__, which would swallow the exceptions of signals wherever locks are used.
            finalizer = weakref.finalize(self, _forgotten, self.__dict__, repr(self))
            finalizer.atexit = False

    _template: Any = None
    _used = False
    """It was asked for its name, as all that locks does, or has decorated a function."""

    def __call__(self, *functions: F, **nothing: object) -> F:
        self._used = True
        return super().__call__(*functions, **nothing)

    @property
    def name(self) -> str:
        """What is locked, where this is not used as a decorator."""
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
            # In other libraries the lock is released and extended.
            if not name.startswith("_") and hasattr(Lease, name):
                raise AttributeError(
                    f"redis_lock has no {name}: its lease has, which acquire() returns, and "
                    f"`with redis_lock(…) as lease` gives"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _lock_for(self, name: str, where: str) -> Lock:
        return self._renamed(name, where)

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
        return WRAPPERS[kind](function, lock_for)


def _forgotten(attributes: dict[str, Any], lock: str) -> None:
    """A lock with these attributes is gone."""
    if not attributes.get("_used") and not sys.is_finalizing():
        warnings.warn(
            f"{lock} was never used, so it has locked nothing. Write it in a with "
            f"statement, call its acquire(), or decorate a function with it.",
            RuntimeWarning,
            stacklevel=3,
        )


def _watched() -> bool:
    """Whether a developer looks: in DEBUG, or in tests, for which Django makes an outbox."""
    in_tests = hasattr(sys.modules.get("django.core.mail"), "outbox")
    return in_tests or (settings.configured and bool(settings.DEBUG))


def acquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """The lease, for a block that follows. Raises `LockNotAcquired`, whatever on_conflict says."""
    refuse_event_loop()
    return _lease(run(lock._attempt(SyncPort, wait)))


async def aacquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """`acquire` for coroutines."""
    return _lease(await lock._attempt(AsyncPort, wait))


def _lease(got: Lease | LockNotAcquired) -> Lease:
    # Raised, so that between the lease and its block there is nothing to interrupt.
    if isinstance(got, LockNotAcquired):
        raise got
    return got


def _settle(lock: Lock, conflict: LockNotAcquired) -> Any:
    """The result of a call that did not get its lock, as `on_conflict` says."""
    on_conflict = lock.policy().on_conflict
    if callable(on_conflict):
        return on_conflict(conflict)
    if on_conflict == "raise":
        raise conflict
    return None  # signals.py has told and logged it


def _wrap_function(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except LockNotAcquired as conflict:
            return _settle(lock, conflict)
        with lease:
            return call(function, args, kwargs)

    return locked


def _wrap_coroutine(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except LockNotAcquired as conflict:
            result = _settle(lock, conflict)
            return await result if inspect.isawaitable(result) else result
        async with lease:
            return await function(*args, **kwargs)

    return locked


# A generator is locked from its first step to its end. Between two steps its caller runs, in
# the same context: so the lease is the current one only during a step.


def _wrap_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except LockNotAcquired as conflict:
            instead = _settle(lock, conflict)
            return None if instead is None else (yield from instead)
        try:
            result = yield from _steps(function(*args, **kwargs), lease)
        except BaseException as error:
            lease.leave(error)
            raise
        lease.leave(None)
        return result

    return locked


def _wrap_async_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except LockNotAcquired as conflict:
            instead = _settle(lock, conflict)
            if instead is not None:
                async for item in instead:
                    yield item
            return
        try:
            # There is no `yield from` for asynchronous generators: this is _steps again.
            generator = function(*args, **kwargs)
            step, value, inside = generator.asend, None, Steps(lease)
            while True:
                with inside:
                    try:
                        item = await step(value)
                    except StopAsyncIteration:
                        break
                try:
                    value = yield item
                    step = generator.asend
                except GeneratorExit:
                    with inside:
                        await generator.aclose()
                    raise
                except BaseException as error:
                    step, value = generator.athrow, error
        except BaseException as error:
            await lease.aleave(error)
            raise
        await lease.aleave(None)

    return locked


def _steps(generator: Generator[Any, Any, Any], lease: Lease) -> Generator[Any, Any, Any]:
    """`yield from generator`, with `lease` as the current one while it runs."""
    step: Callable[[Any], Any] = generator.send
    value: Any = None
    inside = Steps(lease)
    while True:
        with inside:
            try:
                item = step(value)
            except StopIteration as stop:
                return stop.value
        try:
            value = yield item
            step = generator.send
        except GeneratorExit:
            with inside:
                generator.close()
            raise
        except BaseException as error:
            step, value = generator.throw, error


WRAPPERS: dict[str, Callable[[Callable[..., Any], LockFor], Callable[..., Any]]] = {
    "function": _wrap_function,
    "coroutine": _wrap_coroutine,
    "generator": _wrap_generator,
    "asynchronous generator": _wrap_async_generator,
}
