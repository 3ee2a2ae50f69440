"""What is read of callables: whatever Python and the frameworks wrap around a function, a template
sees the arguments of its call."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncContextDecorator, ContextDecorator
from functools import lru_cache, partial, partialmethod, singledispatch, update_wrapper, wraps
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page, never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_POST
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redislock import (
    MultiLock,
    ReadWriteLock,
    Semaphore,
    current_lease,
    once,
    redis_lock,
    single_flight,
)
from django_redislock.base.callables import written
from django_redislock.periodic import job as jobs
from django_redislock.views import lock_view

pytestmark = pytest.mark.usefixtures("redis")

lock = redis_lock("job:{pk}")


def name_of(pk: int, shop: str = "main") -> str:
    """A function to be decorated, which returns what it has locked."""
    return current_lease().name


async def aname_of(pk: int, shop: str = "main") -> str:
    return current_lease().name


# Wrappers as people write them.


def passing_on(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def giving_the_first(function: Any) -> Any:
    @wraps(function)
    def wrapper(pk: int, *args: Any, **kwargs: Any) -> Any:
        return function("the user", pk, *args, **kwargs)

    return wrapper


def giving_a_keyword(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, cursor="the cursor", **kwargs)

    return wrapper


def taking_a_keyword(function: Any) -> Any:
    """As paginate() of django-ninja does."""

    @wraps(function)
    def wrapper(pk: int, **kwargs: Any) -> Any:
        kwargs.pop("page")
        return function(pk, **kwargs)

    return wrapper


def with_its_own_parameters(function: Any) -> Any:
    @wraps(function)
    def wrapper(pk: int) -> Any:
        return function("the user", pk)

    return wrapper


def as_admin_wraps(function: Any) -> Any:
    """As the URLs of ModelAdmin: `__wrapped__` is a bound method."""

    class Admin:
        def view(self, pk: int) -> Any:
            return function(pk)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return admin.view(*args, **kwargs)

    admin = Admin()
    return update_wrapper(wrapper, admin.view)


def of_user(user: str, pk: int) -> str:
    return current_lease().name


def of_cursor(pk: int, cursor: str) -> str:
    return current_lease().name


class Around(ContextDecorator):
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class AsyncAround(AsyncContextDecorator):
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


class Shop:
    """Methods that get their names through method_decorator, or from it."""

    pk = 7

    def plain(self, pk: int) -> str:
        return current_lease().name

    with_partialmethod = lock(partialmethod(plain, pk=1))
    with_positional_partialmethod = lock(partialmethod(plain, 1))
    partialmethod = partialmethod(plain, 1)
    method = method_decorator(lock)(plain)
    of_self = method_decorator(redis_lock("job:{self.pk}"))(plain)
    above = method_decorator([passing_on, lock])(plain)
    below = method_decorator([lock, passing_on])(plain)
    around = method_decorator(passing_on)(lock(plain))

    @method_decorator(lock)
    async def coroutine(self, pk: int) -> str:
        return current_lease().name

    @method_decorator(lock)
    def generator(self, pk: int) -> Iterator[str]:
        yield current_lease().name

    @lock
    @transaction.atomic
    def atomic(self, pk: int) -> str:
        return current_lease().name


@pytest.mark.parametrize(
    ("call", "name"),
    [
        pytest.param(lambda: lock(passing_on(name_of))(1), "job:1", id="wraps"),
        pytest.param(lambda: lock(passing_on(passing_on(name_of)))(1), "job:1", id="twice"),
        pytest.param(lambda: lock(giving_the_first(of_user))(1), "job:1", id="gives the first"),
        pytest.param(
            lambda: lock(giving_the_first(of_user))(pk=1), "job:1", id="gives the first, keyword"
        ),
        pytest.param(lambda: lock(giving_a_keyword(of_cursor))(1), "job:1", id="gives a keyword"),
        pytest.param(
            lambda: lock(taking_a_keyword(name_of))(1, page=2), "job:1", id="takes a keyword"
        ),
        pytest.param(lambda: lock(with_its_own_parameters(of_user))(1), "job:1", id="its own"),
        pytest.param(lambda: lock(as_admin_wraps(name_of))(1), "job:1", id="ModelAdmin"),
        pytest.param(
            lambda: lock(mock.patch("os.getpid")(of_cursor))(1), "job:1", id="mock.patch"
        ),
        pytest.param(lambda: lock(lru_cache(name_of))(1), "job:1", id="lru_cache"),
        pytest.param(lambda: lock(singledispatch(name_of))(1), "job:1", id="singledispatch"),
        pytest.param(lambda: lock(partial(name_of))(1), "job:1", id="partial"),
        pytest.param(lock(partial(name_of, 1)), "job:1", id="partial that gives it"),
        pytest.param(lock(partial(name_of, pk=1)), "job:1", id="partial, keyword"),
        pytest.param(
            lambda: redis_lock("job:{shop}")(partial(name_of, 1))("x"), "job:x", id="rest"
        ),
        pytest.param(
            lock(partial(passing_on(partial(name_of, 1)), shop="x")),
            "job:1",
            id="partial of a wrapper of a partial",
        ),
        pytest.param(lambda: lock(Shop().plain)(1), "job:1", id="bound method"),
        pytest.param(lock(Shop().partialmethod), "job:1", id="bound partialmethod"),
        pytest.param(lambda: Shop().with_partialmethod(), "job:1", id="partialmethod"),
        pytest.param(
            lambda: Shop().with_positional_partialmethod(), "job:1", id="partialmethod, positional"
        ),
        pytest.param(lambda: lock(Around()(name_of))(1), "job:1", id="ContextDecorator"),
        pytest.param(lambda: lock(transaction.atomic(name_of))(1), "job:1", id="atomic"),
        pytest.param(
            lambda: lock(sensitive_variables("shop")(name_of))(1),
            "job:1",
            id="sensitive",
        ),
        pytest.param(lambda: lock(override_settings(A=1)(name_of))(1), "job:1", id="override"),
        pytest.param(lambda: lock(async_to_sync(aname_of))(1), "job:1", id="async_to_sync"),
        pytest.param(lambda: Shop().atomic(1), "job:1", id="method, atomic"),
        pytest.param(lambda: Shop().method(1), "job:1", id="method_decorator"),
        pytest.param(lambda: Shop().method(pk=1), "job:1", id="method_decorator, keyword"),
        pytest.param(lambda: Shop().of_self(1), "job:7", id="method_decorator, self"),
        pytest.param(lambda: Shop().above(1), "job:1", id="method_decorator, the second of two"),
        pytest.param(lambda: Shop().below(1), "job:1", id="method_decorator, the first of two"),
        pytest.param(lambda: Shop().around(1), "job:1", id="method_decorator above"),
        pytest.param(lambda: next(Shop().generator(1)), "job:1", id="method_decorator, generator"),
    ],
)
@pytest.mark.django_db
def test_wrappers(call: Callable[[], str], name: str) -> None:
    """The template sees the arguments of the call, whoever passes them to the function."""
    assert call() == name


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: lock(AsyncAround()(aname_of))(1), id="AsyncContextDecorator"),
        pytest.param(lambda: lock(sync_to_async(name_of))(1), id="sync_to_async"),
        pytest.param(lock(partial(aname_of, 1)), id="partial"),
        pytest.param(lambda: Shop().coroutine(1), id="method_decorator"),
    ],
)
async def test_asynchronous_wrappers(call: Callable[[], Awaitable[str]]) -> None:
    """Coroutines are locked as coroutines."""
    assert await call() == "job:1"


@pytest.mark.parametrize(
    "decorator",
    [
        redis_lock("job:{pk}"),
        Semaphore("job:{pk}", 2),
        ReadWriteLock("job:{pk}").write(),
        MultiLock(["job:{pk}", "other:{pk}"]),
        once("job:{pk}"),
        single_flight("job:{pk}"),
    ],
    ids=lambda decorator: type(decorator).__name__,
)
def test_method_decorator_of_every_kind(decorator: Any) -> None:
    """Every decorator of this package can be given to method_decorator()."""

    class Some:
        @method_decorator(decorator)
        def method(self, pk: int) -> str:
            return current_lease().name

    assert "job:1" in Some().method(1)


# Views, as Django and Django REST framework make them.


def view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(current_lease().name)


class Page(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return view(request, pk)


@method_decorator(login_required, name="dispatch")
class Members(Page):
    """What as_view() makes of it has the attributes of dispatch(), `__wrapped__` included."""


class Things(ViewSet):
    @action(detail=True)
    def below(self, request: Any, pk: int) -> Response:
        return Response(current_lease().name)

    above = lock_view("job:{pk}")(below)


class Api(APIView):
    def post(self, request: Any, pk: int) -> Response:
        return Response(current_lease().name)


def request() -> HttpRequest:
    its = RequestFactory().post("/")
    its.user = User(pk=1)
    its._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    return its


@pytest.mark.parametrize(
    "decorator",
    [lock, lock_view("job:{pk}"), lock_view(lambda request, pk: f"job:{request.user.pk}")],
)
@pytest.mark.parametrize(
    "its",
    [
        *(
            pytest.param(wrapper(view), id=wrapper.__name__)
            for wrapper in (login_required, never_cache, csrf_exempt, require_POST)
        ),
        pytest.param(cache_page(0)(view), id="cache_page"),
        pytest.param(sensitive_post_parameters("a")(view), id="sensitive_post_parameters"),
        pytest.param(Page.as_view(), id="as_view"),
        pytest.param(Members.as_view(), id="as_view of a decorated dispatch"),
        pytest.param(partial(view), id="partial"),
    ],
)
def test_views(its: Any, decorator: Any) -> None:
    """The URL's arguments have their names in every view."""
    assert decorator(its)(request(), pk=1).content == b"job:1"
    with pytest.raises(ValueError, match="needs the argument 'nope'"):
        decorator.__class__("job:{nope.a}")(view)


@pytest.mark.parametrize("decorator", [lock, lock_view("job:{pk}")])
@pytest.mark.parametrize("where", ["dispatch", "post"])
def test_views_by_method_decorator(where: str, decorator: Any) -> None:
    """As Django's documentation decorates a class."""
    its = method_decorator(decorator, name=where)(type("Its", (Page,), {}))
    assert its.as_view()(request(), pk=1).content == b"job:1"


@pytest.mark.parametrize(
    "its",
    [
        pytest.param(lock(api_view(["POST"])(view)), id="api_view"),
        pytest.param(api_view(["POST"])(lock(view)), id="below api_view"),
        pytest.param(lock(Api.as_view()), id="APIView"),
        pytest.param(lock(Things.as_view({"post": "below"})), id="ViewSet"),
        pytest.param(Things.as_view({"post": "above"}), id="action"),
    ],
)
def test_views_of_rest_framework(its: Any) -> None:
    """Both sides of what the framework makes."""
    response = its(request(), pk=1)
    assert (
        response.data if isinstance(response, Response) else response.content.decode()
    ) == "job:1"


# What else asks for parameters.


def test_arguments_that_are_missing() -> None:
    """The error names the argument that the template needs, whatever wraps the function."""
    with pytest.raises(TypeError, match="missing a required argument: 'pk'"):
        lock(passing_on(name_of))()
    with pytest.raises(ValueError, match=r"needs the argument 'user', .* It has: pk\."):
        redis_lock("job:{user}")(giving_the_first(of_user))
    with pytest.raises(TypeError, match="too many positional arguments"):
        lock(name_of)(1, 2, 3)  # type: ignore[call-arg]


SOURCE = """
from functools import partial, partialmethod
from typing import TYPE_CHECKING
from django.utils.decorators import method_decorator
from django_redislock import current_lease, redis_lock, single_flight
from django_redislock.periodic import periodic

if TYPE_CHECKING:
    from nowhere import User

@redis_lock("job:{pk}")
def function(pk: User, users: list[User] = 1, *, of: nowhere.User | None = None) -> User:
    return current_lease().name

class Shop:
    @method_decorator(redis_lock("job:{pk}"))
    def method(self, pk: User) -> User:
        return current_lease().name

    of = partialmethod(method, 1)

@periodic(every=60)
def tidy_up(user: User | None = None) -> None: ...

@single_flight()
def rates() -> User:
    return 1
"""


def test_annotations_that_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is imported for type checkers only has no value when a decorator runs. No
    decorator asks for it, also from Python 3.14 on, where that is an error."""
    monkeypatch.setattr(jobs, "_registry", {})
    if sys.version_info < (3, 14):
        source = f"from __future__ import annotations\n{SOURCE}"
    else:
        source = SOURCE
    space: dict[str, Any] = {"__name__": "some"}
    exec(compile(source, "some.py", "exec", dont_inherit=True), space)
    assert space["function"](1) == "job:1"
    assert space["Shop"]().method(1) == "job:1"
    assert space["Shop"]().of() == "job:1"
    assert space["rates"]() == 1
    assert [job.name for job in jobs.jobs()] == ["some.tidy_up"]
    with pytest.raises(ValueError, match=r"function\(pk: 'User', users: 'list\[User\]' = 1"):
        redis_lock("{nope}")(written(space["function"]))
