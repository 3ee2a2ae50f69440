"""A decorator of every kind of function: each call takes the lock, runs, and releases it."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from functools import partial, partialmethod, wraps
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from ..base.callables import call, kind_of, of_function
from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..lease.holds import Entered, Hold
from ..lease.lease import Lease
from ..lease.lock import UNSET, Got, Lock, OnConflict_co, refuse_event_loop
from ..lease.order import Steps
from ..primitives.contract import run
from ..settings.naming import name_maker
from ..transport.ports import AsyncPort, SyncPort

F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", bound=Callable[..., Iterator[Any] | AsyncIterator[Any]])
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
Co = Coroutine[Any, Any, T]
MaySkip = Literal["raise", "skip"]

_STARTERS = ("delay", "enqueue", "apply_async", "send")
"""Methods with which a task queue starts a task: Celery; RQ, Huey and django.tasks; Celery;
Dramatiq."""

AnyFunction = Callable[..., Any]
LockFor = Callable[[tuple[Any, ...], dict[str, Any]], Lock]
"""Returns the lock of one call of a function."""


def acquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """Return the lease for a block that follows. Raises `LockNotAcquired` for any on_conflict."""
    refuse_event_loop()
    return _lease(run(lock._attempt(SyncPort, wait)))


async def aacquire(lock: Lock, wait: float | None = UNSET) -> Lease:
    """`acquire` for coroutines."""
    return _lease(await lock._attempt(AsyncPort, wait))


def _lease(got: Got) -> Lease:
    # Raised and not returned: no signal's exception can come between the lease and its block.
    if not isinstance(got, Lease):
        raise got
    return got


NO_LOCK = LockNotAcquired, LockUnavailable


def _settle(lock: Lock, conflict: LockNotAcquired | LockUnavailable) -> Any:
    """Return the result of a call that did not get its lock, as `on_conflict` and `unavailable`
    say."""
    if isinstance(conflict, LockUnavailable):
        on_conflict: Any = "skip" if conflict.skips else "raise"
    elif callable(on_conflict := lock._policy().on_conflict):
        return on_conflict(conflict)
    if on_conflict == "raise":
        raise conflict
    return None  # it has been logged


def _wrap_function(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except NO_LOCK as conflict:
            return _settle(lock, conflict)
        with lease:
            return call(function, args, kwargs)

    return locked


def _wrap_coroutine(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except NO_LOCK as conflict:
            result = _settle(lock, conflict)
            return await result if inspect.isawaitable(result) else result
        async with lease:
            return await function(*args, **kwargs)

    return locked


# A generator holds the lock from its first step to its end. Between two steps its caller runs in
# the same context, so the lease is the current one only during a step.


def _wrap_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = acquire(lock)
        except NO_LOCK as conflict:
            instead = _settle(lock, conflict)
            return None if instead is None else (yield from instead)
        with _Generator(lease) as hold:
            return (yield from _Inside(function(*args, **kwargs), hold))

    return locked


def _wrap_async_generator(function: Callable[..., Any], lock_for: LockFor) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        lock = lock_for(args, kwargs)
        try:
            lease = await aacquire(lock)
        except NO_LOCK as conflict:
            instead = _settle(lock, conflict)
            if instead is not None:
                async for item in instead:
                    yield item
            return
        async with _Generator(lease) as hold:
            # Written out, since asynchronous generators have no `yield from`.
            generator = function(*args, **kwargs)
            step, value, inside = generator.asend, None, Steps(hold)
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

    return locked


class _Generator(Entered):
    """A generator that holds `lease`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> Hold:
        self._hold = self._lease._enter(current=False)
        return self._hold

    async def __aenter__(self) -> Hold:
        return self.__enter__()

    def _leaving(self) -> tuple[Hold, Lease]:
        return self._hold, self._lease


class _Inside(Generator[Any, Any, Any]):
    """A generator with `hold` as the innermost block while it runs."""

    def __init__(self, generator: Generator[Any, Any, Any], hold: Hold) -> None:
        self._generator = generator
        self._inside = Steps(hold)

    def send(self, value: Any) -> Any:
        with self._inside:
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._inside:
            return self._generator.throw(*error)


WRAPPERS: dict[str, Callable[[Callable[..., Any], LockFor], Callable[..., Any]]] = {
    "function": _wrap_function,
    "coroutine": _wrap_coroutine,
    "generator": _wrap_generator,
    "asynchronous generator": _wrap_async_generator,
}
"""By the kind of function."""


class FunctionDecorator(Generic[OnConflict_co]):
    """Decorates functions, methods, coroutines and generators.

    Type checkers know what a decorated function returns: with `on_conflict="raise"` what it
    returned before, with "skip" perhaps None, and with a function perhaps its result. A generator
    still makes an iterator, which may be empty.
    """

    _template: Any = None
    """The name: a template, a function of the arguments, or None."""
    _prefix = ""
    """The plain text with which all names begin."""
    _lock: Lock
    """The lock of every call, but for its name."""
    _used = False
    """It has decorated a function. Of a lock, too: something asked for its name, as everything
    that locks does."""

    @overload
    def __call__(self: FunctionDecorator[Literal["raise"]], function: F, /) -> F: ...
    @overload
    def __call__(self, function: G, /) -> G: ...
    @overload
    def __call__(
        self: FunctionDecorator[MaySkip], function: Callable[P, Co[T]], /
    ) -> Callable[P, Co[T | None]]: ...
    @overload
    def __call__(
        self: FunctionDecorator[MaySkip], function: Callable[P, T], /
    ) -> Callable[P, T | None]: ...
    @overload
    def __call__(
        self: FunctionDecorator[Callable[[LockNotAcquired], Awaitable[C]]],
        function: Callable[P, Co[T]],
        /,
    ) -> Callable[P, Co[T | C]]: ...
    @overload
    def __call__(
        self: FunctionDecorator[Callable[[LockNotAcquired], C]], function: Callable[P, Co[T]], /
    ) -> Callable[P, Co[T | C]]: ...
    @overload
    def __call__(
        self: FunctionDecorator[Callable[[LockNotAcquired], C]], function: Callable[P, T], /
    ) -> Callable[P, T | C]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, Any]: ...
    def __call__(self, *functions: Any, **nothing: object) -> Any:
        self._used = True
        title = type(self).__name__
        function = functions[0] if len(functions) == 1 and not nothing else None
        if isinstance(function, classmethod | staticmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, partialmethod):
            return partialmethod(self(function.func), *function.args, **function.keywords)
        if function is None or not (callable(function) or _starter(function)):
            if callable(self._template):
                raise TypeError(f"{title} needs its parentheses: @{title}() or @{title}('…')")
            raise TypeError(f"{title}(…) decorates one function, not {functions!r}")
        if isinstance(function, type):
            raise TypeError(f"{title}(…) decorates the methods of {function!r}, not the class")
        _refuse_objects(function, title)

        make_name = self._name_maker(function)
        where = of_function(function)

        def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            return self._lock_for(make_name(*args, **kwargs), where)

        return wraps(function)(self._wrap(kind_of(function), function, lock_for))

    def _name_maker(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes a name for `_lock_for` from the arguments of a call."""
        return name_maker(self._template, function, prefix=self._prefix)

    def _lock_for(self, name: Any, where: str) -> Lock:
        """Return the lock of a call. `where` is its label unless the lock has one."""
        return self._lock._renamed(name, where)

    def _wrap(self, kind: str, function: AnyFunction, lock_for: LockFor) -> AnyFunction:
        """Return the decorated function. By default each call holds its lock."""
        return WRAPPERS[kind](function, lock_for)


def _starter(function: object) -> str:
    """Return the method with which a task queue starts it, or "" if it is no task."""
    return next((name for name in _STARTERS if callable(getattr(function, name, None))), "")


def _refuse_objects(function: object, title: str) -> None:
    """Raise `TypeError` for an object that can be started without being called: its lock would
    only be taken when it is called."""
    if starter := _starter(function):
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
