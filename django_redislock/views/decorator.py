"""What both view decorators have in common: the kinds of views that there are.

A function, a method or a class; synchronous or not; of Django, or of Django REST framework. They
all end in two methods, of which one awaits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import cache, partial, wraps
from types import MethodType
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..base import label

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])


def method_of(view: Any) -> Any:
    """The bound method in the partial that method_decorator() makes of it."""
    while isinstance(view, partial) and not (view.args or view.keywords):
        view = view.func
    return view


class Call(NamedTuple):
    """A view that is to be run, and with what."""

    view: Callable[..., Any]
    request: Any
    """Django's, or what Django REST framework makes of it."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    prepared: Any
    """What `prepare` made of the view."""
    whole_class: bool = False
    """It is the handler of a class that is decorated as a whole."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional ones, without the `self` of a method."""
        is_method = len(self.args) > 1 and self.args[1] is self.request
        return self.args[is_method:]

    def run(self) -> HttpResponseBase:
        return self._checked(self.view(*self.args, **self.kwargs))

    async def arun(self) -> HttpResponseBase:
        response = self.view(*self.args, **self.kwargs)
        if inspect.isawaitable(response):
            response = await response
        return self._checked(response)

    def _checked(self, response: Any) -> HttpResponseBase:
        # Django says so, too, but sees only our results.
        if not isinstance(response, HttpResponseBase):
            raise ValueError(f"{self.label} returned no HttpResponse, but {response!r}")
        return response

    @property
    def _dispatched(self) -> Any:
        """The object whose dispatch() it is, or of Django REST framework: handler; or None."""
        view = method_of(self.view)
        name = getattr(view, "__name__", "")
        of = getattr(view, "__self__", self.args[0] if self.args else None)
        whole = name == "dispatch" or self.whole_class
        return of if whole and of is not self.request else None

    @property
    def of_class(self) -> str | None:
        """The dotted path of the class that is decorated as a whole."""
        of = self._dispatched
        return None if of is None else label.dotted_path(type(of))

    @property
    def is_async_dispatch(self) -> bool:
        """Whether it is a function whose result is to be awaited all the same."""
        return bool(getattr(self._dispatched, "view_is_async", False))

    @property
    def label(self) -> str:
        """Where the view is defined; of a class which, and not where Django has dispatch()."""
        return label.clean(self.of_class or label.of_function(self.view))


class ViewDecorator:
    """Decorates a view. `serve` and `aserve` decide what becomes of a call of it."""

    methods: frozenset[str] | None
    """Of HTTP, for which it does something; None: all but OPTIONS, which only asks for them."""

    def serve(self, call: Call) -> HttpResponseBase:
        raise NotImplementedError

    async def aserve(self, call: Call) -> HttpResponseBase:
        raise NotImplementedError

    def prepare(self, view: Callable[..., Any]) -> Any:
        """What a call of the view needs; what is wrong with it is told when it is decorated."""

    def __call__(self, view: V) -> V:
        if isinstance(view, type):
            return self._decorate_class(view)  # type: ignore[return-value]
        if not callable(view):
            raise TypeError(
                f"{self!r} decorates a view, not {view!r}; as a decorator it needs parentheses"
            )
        cls: Any = getattr(view, "cls", None)
        if _of_rest_framework(cls):
            # Outside of it nothing would be known of its users, and its own exception handler
            # would never be asked.
            raise TypeError(
                f"{self!r} must be nearer to the function than @api_view, or decorate the class "
                f"{cls.__name__} in place of what its as_view() returns"
            )
        return self._decorate(view)

    def _decorate(self, view: V, *, whole_class: bool = False) -> V:
        prepared = self.prepare(view)

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            request = self._request(view, args, kwargs)
            return Call(view, request, args, kwargs, prepared, whole_class)

        wrapper: Callable[..., Any]
        if iscoroutinefunction(view):

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
        # As method_decorator() does, the class itself is changed.
        if _of_rest_framework(cls):
            # Its dispatch() authenticates the user, turns exceptions into answers, and makes
            # the request what its views know: so the handler itself is decorated, when all that
            # is done.
            initial = cls.initial  # type: ignore[attr-defined]
            # By function; a class has a few, and each is looked at once.
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
        return self.serve(call) if self._applies(call.request) else call.run()

    async def _aanswer(self, call: Call) -> HttpResponseBase:
        return await (self.aserve(call) if self._applies(call.request) else call.arun())

    def _applies(self, request: Any) -> bool:
        if self.methods is None:
            return bool(request.method != "OPTIONS")
        return bool(request.method in self.methods)

    def _request(
        self, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # The first argument of a function, the second one of a method.
        for argument in (*args[:2], kwargs.get("request")):
            if isinstance(argument, HttpRequest) or is_of_rest_framework(argument):
                return argument
        raise TypeError(f"{self!r} decorates views, and {view!r} was called without a request")


async def beside_orm(call: Callable[[], T]) -> T:
    """What `call` returns; in the thread of the ORM if it needs that, as `request.user` may."""
    try:
        return call()
    except SynchronousOnlyOperation:
        return await sync_to_async(call, thread_sensitive=True)()


def is_of_rest_framework(request: Any) -> bool:
    """Whether it is the request of Django REST framework, which wraps Django's."""
    # Who has not imported it can't have made one.
    kind: type | tuple[()] = getattr(sys.modules.get("rest_framework.request"), "Request", ())
    return isinstance(request, kind)


def _of_rest_framework(cls: Any) -> bool:
    kind: type | tuple[()] = getattr(sys.modules.get("rest_framework.views"), "APIView", ())
    return bool(isinstance(cls, type) and issubclass(cls, kind))


def validate_methods(methods: Any) -> frozenset[str] | None:
    """The argument `methods`. Raises `TypeError`, `ValueError`."""
    if methods is None:
        return None
    if isinstance(methods, str) or not all(isinstance(method, str) for method in methods):
        raise TypeError(f"methods must be a list of methods, such as ['POST'], not {methods!r}")
    wrong = [method for method in methods if not method or method != method.upper()]
    if wrong or not methods:
        raise ValueError(f"methods must be in capitals, such as ['POST'], not {methods!r}")
    return frozenset(methods)
