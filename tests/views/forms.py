"""The kinds of views that there are, each made of a decorator and a body, and clients for them.

Each form is called as `/<pk>/` with the URL argument `pk`, and calls `body(request, pk)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

Body = Callable[[HttpRequest, int], HttpResponseBase]
Decorator = Callable[[Any], Any]


def function(decorator: Decorator, body: Body) -> Any:
    @decorator
    def view(request: HttpRequest, pk: int) -> HttpResponseBase:
        return body(request, pk)

    return view


def coroutine(decorator: Decorator, body: Body) -> Any:
    @decorator
    async def view(request: HttpRequest, pk: int) -> HttpResponseBase:
        await asyncio.sleep(0)
        return body(request, pk)

    return view


def as_it_is(anything: Any) -> Any:
    return anything


def page(body: Body, decorator: Decorator = as_it_is, base: type = View) -> Any:
    """A class whose `post` calls the body. The decorator is for the method."""

    class Page(base):  # type: ignore[misc]
        @decorator
        def post(self, request: HttpRequest, pk: int) -> HttpResponseBase:
            return body(request, pk)

    return Page


def async_page(body: Body, decorator: Decorator = as_it_is) -> Any:
    """The same with a coroutine."""

    class Page(View):
        @decorator
        async def post(self, request: HttpRequest, pk: int) -> HttpResponseBase:
            await asyncio.sleep(0)
            return body(request, pk)

    return Page


def class_based(decorator: Decorator, body: Body) -> Any:
    return decorator(page(body)).as_view()


def async_class_based(decorator: Decorator, body: Body) -> Any:
    return decorator(async_page(body)).as_view()


def method(decorator: Decorator, body: Body) -> Any:
    return page(body, decorator).as_view()


def async_method(decorator: Decorator, body: Body) -> Any:
    return async_page(body, decorator).as_view()


def method_decorated(decorator: Decorator, body: Body) -> Any:
    return method_decorator(decorator, name="post")(page(body)).as_view()


def dispatch_decorated(decorator: Decorator, body: Body) -> Any:
    return method_decorator(decorator, name="dispatch")(page(body)).as_view()


def async_dispatch_decorated(decorator: Decorator, body: Body) -> Any:
    return method_decorator(decorator, name="dispatch")(async_page(body)).as_view()


def api_class(decorator: Decorator, body: Body) -> Any:
    return decorator(page(body, base=APIView)).as_view()


def api_method(decorator: Decorator, body: Body) -> Any:
    return page(body, decorator, APIView).as_view()


def api_function(decorator: Decorator, body: Body) -> Any:
    @api_view(["POST"])
    @decorator
    def view(request: Any, pk: int) -> HttpResponseBase:
        return body(request, pk)

    return view


def api_patch(decorator: Decorator, body: Body) -> Any:
    @decorator
    class Page(APIView):
        def patch(self, request: Any, pk: int) -> HttpResponseBase:
            assert request.data["amount"]
            return body(request, pk)

    return Page.as_view()


def api_view_set(decorator: Decorator, body: Body) -> Any:
    return decorator(page(body, base=ViewSet)).as_view({"post": "post"})


# Decorated twice, as it happens with inheritance.


def twice(form: Callable[..., Any]) -> Callable[..., Any]:
    """This form, with the decorator above itself."""

    def decorated(decorator: Decorator, body: Body) -> Any:
        return form(lambda view: decorator(decorator(view)), body)

    decorated.__name__ = f"{form.__name__}_twice"
    return decorated


def child_and_parent(decorator: Decorator, body: Body, base: type = View) -> Any:
    @decorator
    class Child(decorator(page(body, base=base))):  # type: ignore[misc]
        pass

    return Child.as_view()


def api_child_and_parent(decorator: Decorator, body: Body) -> Any:
    return child_and_parent(decorator, body, APIView)


def class_and_method(decorator: Decorator, body: Body) -> Any:
    return decorator(page(body, decorator)).as_view()


def method_and_super(decorator: Decorator, body: Body) -> Any:
    class Child(page(body, decorator)):  # type: ignore[misc]
        @decorator
        def post(self, request: HttpRequest, pk: int) -> Any:
            return super().post(request, pk)

    return Child.as_view()


def coroutine_and_function(decorator: Decorator, body: Body) -> Any:
    """The inner view runs in another thread."""
    inner = function(decorator, body)

    @decorator
    async def view(request: HttpRequest, pk: int) -> HttpResponseBase:
        return await sync_to_async(inner)(request, pk)

    return view


DJANGO = [
    function,
    coroutine,
    class_based,
    async_class_based,
    method,
    async_method,
    method_decorated,
    dispatch_decorated,
    async_dispatch_decorated,
]
REST_FRAMEWORK = [api_class, api_method, api_function, api_view_set]
FORMS = DJANGO + REST_FRAMEWORK
SOME = [function, coroutine, api_class]
"""For tests of what does not depend on how a decorator gets at a view: one that is synchronous,
one that is not, and one of another framework."""
TWICE = [
    *map(twice, FORMS),
    child_and_parent,
    api_child_and_parent,
    class_and_method,
    method_and_super,
    coroutine_and_function,
]


def ok(request: HttpRequest, pk: int) -> HttpResponse:
    """A body that has nothing to do."""
    return HttpResponse("done")


def at_root(view: Any) -> AbstractContextManager[None]:
    """The view answers `/<pk>/`."""
    # Django takes patterns themselves, too; as a tuple, since it remembers by them.
    return override_settings(ROOT_URLCONF=(path("<int:pk>/", view),))  # type: ignore[return-value]


def wsgi(method: str, where: str = "/7/", **request: Any) -> Any:
    """Ask as a WSGI server does."""
    client = Client(raise_request_exception=request.pop("raises", True))
    return getattr(client, method)(where, **request)


def asgi(method: str, where: str = "/7/", **request: Any) -> Any:
    """Ask as an ASGI server does."""

    async def ask() -> Any:
        client = AsyncClient(raise_request_exception=request.pop("raises", True))
        return await getattr(client, method)(where, **request)

    return asyncio.run(ask())


CLIENTS = [wsgi, asgi]
