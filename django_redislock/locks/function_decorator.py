"""A decorator of every kind of function, with a lock for each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from ..base import label
from ..lease.lock import Lock
from ..settings.naming import name_maker
from .wrappers import WRAPPERS, LockFor

F = TypeVar("F", bound=Callable[..., Any])

_STARTERS = ("delay", "enqueue", "apply_async", "send")
"""Methods with which a task queue starts a task: Celery; RQ, Huey and django.tasks; Celery;
Dramatiq."""


class FunctionDecorator:
    """Decorates functions, methods, coroutines and generators."""

    _template: Any
    """The name: a template, a function of the arguments, or None."""
    _prefix = ""
    """The plain text with which all names begin."""

    def __call__(self, *functions: F, **nothing: object) -> F:
        title = type(self).__name__
        function = functions[0] if len(functions) == 1 and not nothing else None
        if isinstance(function, classmethod | staticmethod):
            return type(function)(self(function.__func__))
        if function is None or not (callable(function) or _starter(function)):
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
