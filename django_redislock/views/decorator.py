"""A decorator of every kind of view: functions, methods and classes, synchronous or not, of Django
or Django REST framework. A subclass has two methods, one of them a coroutine.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import cache, partial, wraps
from types import MethodType
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..base import people
from ..base.callables import kind_of, of_function
from ..lease.holds import enclosing
from ..lease.lease import Lease
from ..lease.lock import Lock

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])


def method_of(view: Any) -> Any:
    """Return the bound method in the partial that method_decorator() makes of it, below other
    decorators."""
    while not inspect.ismethod(view):
        if isinstance(view, partial) and not (view.args or view.keywords):
            view = view.func
        elif hasattr(view, "__wrapped__"):
            view = view.__wrapped__
        else:
            break
    return view


class Call(NamedTuple):
    """One call of a view: the view and its arguments."""

    view: Callable[..., Any]
    request: Any
    """Django's request, or that of Django REST framework."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    prepared: Any
    """The result of `_prepare` for the view."""
    whole_class: bool = False
    """The view is a handler of a class that is decorated as a whole."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments, without the `self` of a method."""
        is_method = len(self.args) > 1 and self.args[1] is self.request
        return self.args[is_method:]

    @property
    def leases(self) -> list[Lease]:
        """The leases that decorators have taken for this request."""
        its: list[Lease] = vars(plain_request(self.request)).setdefault("_redislock_leases", [])
        return its

    def has(self, lock: Lock) -> bool:
        """Whether a decorator around this one holds the lock for this request: a class and its
        method, or a class and its parent, may have the same one. Raises `LeaseLost`."""
        if not self.leases:
            return False
        key, using = lock._keys().lock, lock._policy().using
        for lease in enclosing(Lease):
            if lease in self.leases and (lease._claim.keys.lock, lease.using) == (key, using):
                lease.check()  # a view never runs without its lock
                return True
        return False

    def run(self, lease: Lease | None = None) -> HttpResponseBase:
        """Call the view, under a lease that was taken for it."""
        if lease is not None:
            self.leases.append(lease)
        return self._checked(self.view(*self.args, **self.kwargs))

    async def arun(self, lease: Lease | None = None) -> HttpResponseBase:
        """`run` for coroutines."""
        if lease is not None:
            self.leases.append(lease)
        response = self.view(*self.args, **self.kwargs)
        if inspect.isawaitable(response):
            response = await response
        return self._checked(response)

    def _checked(self, response: Any) -> HttpResponseBase:
        # Django has the same check, but would name the decorator's function.
        if not isinstance(response, HttpResponseBase):
            raise ValueError(f"{self.label} returned no HttpResponse, but {response!r}")
        return response

    @property
    def _dispatched(self) -> Any:
        """The object whose dispatch(), or handler of Django REST framework, is called; or None."""
        view = method_of(self.view)
        name = getattr(view, "__name__", "")
        of = getattr(view, "__self__", self.args[0] if self.args else None)
        whole = name == "dispatch" or self.whole_class
        return of if whole and of is not self.request else None

    @property
    def of_class(self) -> str | None:
        """The dotted path of the class, if it is decorated as a whole."""
        of = self._dispatched
        return None if of is None else people.dotted_path(type(of))

    @property
    def is_async_dispatch(self) -> bool:
        """Whether the view is a plain function that returns an awaitable."""
        return bool(getattr(self._dispatched, "view_is_async", False))

    @property
    def label(self) -> str:
        """Where the view is defined; for a class the class itself, and not Django's dispatch()."""
        return people.clean(self.of_class or of_function(self.view))


class ViewDecorator:
    """Decorates a view. `_serve` and `_aserve` answer a call of it."""

    _methods: frozenset[str] | None
    """The HTTP methods that the decorator is for; None: all but OPTIONS, which does no work."""

    def _serve(self, call: Call) -> HttpResponseBase:
        raise NotImplementedError

    async def _aserve(self, call: Call) -> HttpResponseBase:
        raise NotImplementedError

    def _prepare(self, view: Callable[..., Any]) -> Any:
        """Return what each call needs. A mistake is raised when the view is decorated."""

    def __call__(self, view: V) -> V:
        if isinstance(view, type):
            return self._decorate_class(view)  # type: ignore[return-value]
        if not callable(view):
            raise TypeError(
                f"{self!r} decorates a view, not {view!r}; as a decorator it needs parentheses"
            )
        cls: Any = getattr(view, "cls", None)
        if _of_rest_framework(cls):
            # Outside @api_view nothing is known of its users, and the framework's exception
            # handler is never asked.
            raise TypeError(
                f"{self!r} must be nearer to the function than @api_view, or decorate the class "
                f"{cls.__name__} instead of what its as_view() returns"
            )
        return self._decorate(view)

    def _decorate(self, view: V, *, whole_class: bool = False) -> V:
        prepared = self._prepare(view)

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            request = self._request(view, args, kwargs)
            return Call(view, request, args, kwargs, prepared, whole_class)

        wrapper: Callable[..., Any]
        if kind_of(view) == "coroutine":

            async def awrapper(*args: Any, **kwargs: Any) -> HttpResponseBase:
                return await self._aanswer(call(args, kwargs))

            wrapper = awrapper
        else:

            def swrapper(
                *args: Any, **kwargs: Any
            ) -> HttpResponseBase | Awaitable[HttpResponseBase]:
                its = call(args, kwargs)
                return self._aanswer(its) if its.is_async_dispatch else self._answer(its)

            wrapper = swrapper
        return wraps(view)(wrapper)  # type: ignore[return-value]

    def _decorate_class(self, cls: type) -> type:
        # The class itself is changed, as by method_decorator().
        if _of_rest_framework(cls):
            # dispatch() of REST framework authenticates the user, answers exceptions, and makes
            # the request that its views get. So the handler itself is decorated, after all that.
            initial = cls.initial  # type: ignore[attr-defined]
            # Cached by function: each handler is prepared once.
            decorated = cache(partial(self._decorate, whole_class=True))

            @wraps(initial)
            def prepared(view: Any, request: Any, *args: Any, **kwargs: Any) -> None:
                initial(view, request, *args, **kwargs)
                method = request.method.lower()
                handler = getattr(view, method, None)
                if self._applies(request) and inspect.ismethod(handler):
                    setattr(view, method, MethodType(decorated(handler.__func__), view))

            cls.initial = prepared  # type: ignore[attr-defined]
        elif hasattr(cls, "dispatch"):
            cls.dispatch = self._decorate(cls.dispatch)
        else:
            raise TypeError(f"{self!r} decorates views, and {cls!r} has no dispatch()")
        return cls

    def _answer(self, call: Call) -> HttpResponseBase:
        return self._serve(call) if self._applies(call.request) else call.run()

    async def _aanswer(self, call: Call) -> HttpResponseBase:
        return await (self._aserve(call) if self._applies(call.request) else call.arun())

    def _applies(self, request: Any) -> bool:
        if self._methods is None:
            return bool(request.method != "OPTIONS")
        return bool(request.method in self._methods)

    def _request(
        self, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # The request is the first argument of a function, or the second of a method.
        for argument in (*args[:2], kwargs.get("request")):
            if isinstance(argument, HttpRequest) or is_of_rest_framework(argument):
                return argument
        raise TypeError(f"{self!r} decorates views, and {view!r} was called without a request")


async def in_thread_if_needed(call: Callable[[], T]) -> T:
    """Call it here, or in the ORM's thread if it needs the database, as `request.user` may."""
    try:
        return call()
    except SynchronousOnlyOperation:
        return await sync_to_async(call, thread_sensitive=True)()


def is_of_rest_framework(request: Any) -> bool:
    """Whether the request is that of Django REST framework, which wraps Django's."""
    # If nobody has imported the framework, the request isn't its.
    kind: type | tuple[()] = getattr(sys.modules.get("rest_framework.request"), "Request", ())
    return isinstance(request, kind)


def plain_request(request: Any) -> Any:
    """Return Django's request, also of that of Django REST framework."""
    return getattr(request, "_request", request)


def _of_rest_framework(cls: Any) -> bool:
    kind: type | tuple[()] = getattr(sys.modules.get("rest_framework.views"), "APIView", ())
    return bool(isinstance(cls, type) and issubclass(cls, kind))


def validate_methods(methods: Any) -> frozenset[str] | None:
    """Return the argument `methods` as a set. Raises `TypeError`, `ValueError`."""
    if methods is None:
        return None
    if isinstance(methods, str) or not all(isinstance(method, str) for method in methods):
        raise TypeError(f"methods must be a list of methods, such as ['POST'], not {methods!r}")
    wrong = [method for method in methods if not method or method != method.upper()]
    if wrong or not methods:
        raise ValueError(f"methods must be in capitals, such as ['POST'], not {methods!r}")
    return frozenset(methods)
