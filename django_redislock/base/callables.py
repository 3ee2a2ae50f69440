"""What is known of a callable, however it is wrapped: its parameters, its kind, and the function
that somebody has written.

`inspect.signature` alone does not say what a caller passes:

*   `__wrapped__` is the function that a wrapper stands for, which may have other parameters.
    Django's method_decorator() gives a bound method that of the plain function, as_view() gives a
    view that of `dispatch(self, request)`, and many wrappers add an argument. So `__wrapped__` is
    followed only from a wrapper that passes on any arguments, and a partial or a bound method is
    read by what it calls.
*   From Python 3.14 on, annotations are evaluated when somebody asks for them, and a name that is
    only imported under TYPE_CHECKING is a `NameError`. So only their text is asked for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncContextDecorator, ContextDecorator
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from asgiref.sync import AsyncToSync, iscoroutinefunction

from . import people

_AS_TEXT: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _AS_TEXT = {"annotation_format": Format.STRING}

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANY = inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005


class Parameters:
    """The parameters of a callable, by which the arguments of a call get their names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._filled, self._signature = _read(function)
        self.by_name: Mapping[str, inspect.Parameter] = self._signature.parameters
        self.any_keyword = next(
            (its.name for its in self.by_name.values() if its.kind is its.VAR_KEYWORD), None
        )
        """The name of the parameter that takes any keywords (`**kwargs`), if there is one."""

    def __str__(self) -> str:
        return str(self._signature)

    def bind(
        self, args: Iterable[Any], kwargs: dict[str, Any], *, defaults: bool = True
    ) -> dict[str, Any]:
        """Return the arguments of a call by their names.

        An argument that is missing is left out, and so is a keyword that is only for a wrapper:
        the call itself says what is wrong with it. Raises `TypeError` for too many arguments.
        """
        for fill in self._filled:
            args, kwargs = fill(*args, **kwargs)
        if kwargs and self.any_keyword is None:
            kwargs = {name: value for name, value in kwargs.items() if name in self.by_name}
        bound = self._signature.bind_partial(*args, **kwargs)
        if defaults:
            bound.apply_defaults()
        arguments = bound.arguments
        if self.any_keyword is None:
            return arguments
        return {**arguments.get(self.any_keyword, {}), **arguments}

    def left(self) -> list[inspect.Parameter]:
        """Return the parameters that a caller may pass."""
        given = self.bind((), {}, defaults=False)
        return [its for name, its in self.by_name.items() if name not in given]

    def needed(self) -> list[str]:
        """Return the names of those that a caller must pass."""
        wanted = (its for its in self.left() if its.kind not in _ANY_NUMBER)
        return [its.name for its in wanted if its.default is its.empty]


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _read(function: Any) -> tuple[list[Callable[..., Any]], inspect.Signature]:
    """Return the parameters of the function that is called in the end, and what adds to a call's
    arguments on the way there, from the outside in."""
    if isinstance(function, partial):
        filled, signature = _read(function.func)
        # A partial itself knows how its arguments and those of a call go together.
        return [partial(_given, *function.args, **function.keywords), *filled], signature
    if inspect.ismethod(function):
        filled, signature = _read(function.__func__)
        return [partial(_given, function.__self__), *filled], signature
    try:
        own = inspect.signature(function, follow_wrapped=False, **_AS_TEXT)
    except (TypeError, ValueError):  # it says nothing, like much that is written in C
        own = _ANY
    inner = _inside(function)
    if inner is None or not any(its.kind in _ANY_NUMBER for its in own.parameters.values()):
        return [], own
    filled, signature = _read(inner)
    return filled, signature if filled else _from_the_first_of(own, signature)


def _inside(function: Any) -> Any:
    """Return what a wrapper wraps, or None."""
    if isinstance(function, partial):
        return function.func
    if isinstance(function, AsyncToSync):
        return function.awaitable
    return getattr(function, "__wrapped__", None)


def _from_the_first_of(own: inspect.Signature, inner: inspect.Signature) -> inspect.Signature:
    """Return the parameters of a wrapped function from the first one of its wrapper on: the
    wrapper passes those before it, as as_view() passes the `self` of `dispatch(self, request)`."""
    first = next(iter(own.parameters))
    passed = [*inner.parameters.values()]
    while passed and passed[0].kind in _BY_POSITION:
        if passed[0].name == first:
            return inner.replace(parameters=passed)
        del passed[0]
    return inner


def kind_of(function: Callable[..., Any]) -> str:
    """Return what a call of it makes: a "coroutine", a "generator", an "asynchronous generator";
    or "function"."""
    if inspect.isasyncgenfunction(function):
        return "asynchronous generator"
    if iscoroutinefunction(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else "function"


def written(function: Any) -> Any:
    """Return the function that somebody has written, below all that wraps it."""
    while (inner := _inside(function)) is not None:
        function = inner
    return function


def of_function(function: Callable[..., Any]) -> str:
    """Return where a function is defined."""
    code = getattr(written(function), "__code__", None)
    if code is None:  # written in C, or an object, whose repr could show secrets
        return people.clean(getattr(function, "__qualname__", type(function).__qualname__))
    return people.of_code(code, code.co_firstlineno)


_LATER = (GeneratorType, AsyncGeneratorType, ContextDecorator, AsyncContextDecorator)
"""What a call may return before a generator has begun. The last two are what contextlib's
`contextmanager` and `asynccontextmanager` make of one."""


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function that must end while its lock is held."""
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{function!r} does not look like a coroutine function and returns a "
            f"coroutine, which would run without the lock: decorate the coroutine function"
        )
    if isinstance(result, _LATER) and kind_of(written(function)).endswith("generator"):
        raise TypeError(
            f"{function!r} does not look like a generator, and returns what one does later, "
            f"without the lock: decorate the generator itself, below @contextmanager, for example"
        )
    return result
