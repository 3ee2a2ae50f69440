"""A decorator of every kind of function, with a lock for each call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial, partialmethod, wraps
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from ..base import label
from ..base.callables import kind_of
from ..base.exceptions import LockNotAcquired
from ..lease.lock import Lock, OnConflict_co
from ..settings.naming import name_maker
from .wrappers import WRAPPERS, LockFor

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


class FunctionDecorator(Generic[OnConflict_co]):
    """Decorates functions, methods, coroutines and generators.

    Type checkers know what a decorated function returns: with `on_conflict="raise"` what it
    returned before, with "skip" perhaps None, and with a function perhaps its result. A generator
    still makes an iterator, which may be empty.
    """

    _template: Any
    """The name: a template, a function of the arguments, or None."""
    _prefix = ""
    """The plain text with which all names begin."""
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
        where = label.of_function(function)

        def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            return self._lock_for(make_name(*args, **kwargs), where)

        return wraps(function)(self._wrap(kind_of(function), function, lock_for))

    def _name_maker(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes a name for `_lock_for` from the arguments of a call."""
        return name_maker(self._template, function, prefix=self._prefix)

    def _lock_for(self, name: Any, where: str) -> Lock:
        """Return the lock of a call. `where` is its label unless the lock has one."""
        raise NotImplementedError

    def _wrap(
        self, kind: str, function: Callable[..., Any], lock_for: LockFor
    ) -> Callable[..., Any]:
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
