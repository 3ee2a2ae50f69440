"""`lock_view` on every kind of view: what it locks, and what it answers without the lock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.asyncio import async_unsafe
from django.views import View
from redis import Redis
from rest_framework.decorators import api_view
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ViewSet

from django_redislock import LeaseLost, LockNotAcquired, LockReentered, current_lease, redis_lock
from django_redislock.signals import LockEvent, lock_acquired
from django_redislock.testing import lose_lease
from django_redislock.views import lock_view
from tests.caches import caches, entry
from tests.operations.calling import AWAY
from tests.test_decorators import held_elsewhere
from tests.views import forms
from tests.views.forms import CLIENTS, FORMS, REST_FRAMEWORK, SOME, TWICE, at_root, ok, wsgi
from tests.waiting import PATIENCE, eventually

Form = Callable[..., Any]
Ask = Callable[..., Any]

by_name = {"ids": lambda one: one.__name__}
every_form = pytest.mark.parametrize("form", FORMS, **by_name)
some_forms = pytest.mark.parametrize("form", SOME, **by_name)
every_client = pytest.mark.parametrize("ask", CLIENTS, **by_name)

PROBLEM = "application/problem+json"


def busy() -> Any:
    """Somebody else holds the lock."""
    return held_elsewhere("order:7")


def away() -> Any:
    """There is no Redis."""
    return override_settings(CACHES=caches(AWAY))


class TestHolding:
    @every_form
    @every_client
    def test_the_view_runs_under_its_lock(self, form: Form, ask: Ask, redis: Redis) -> None:
        """The name is made from the URL's arguments; the lock is released afterwards."""
        seen = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            seen.append((current_lease().name, redis.exists("redislock:{order:7}")))
            return HttpResponse("done")

        with at_root(form(lock_view("order:{pk}"), body)):
            response = ask("post")
        assert (response.status_code, response.content) == (200, b"done")
        assert seen == [("order:7", 1)]
        eventually(lambda: not redis.exists("redislock:{order:7}"))

    @pytest.mark.parametrize(
        ("state", "status", "hint"),
        [(busy, 409, "1"), (away, 503, "5")],
        ids=["busy", "Redis is away"],
    )
    @some_forms
    @every_client
    def test_without_the_lock(
        self, form: Form, ask: Ask, state: Any, status: int, hint: str
    ) -> None:
        """The view does not run. The client is told when to retry, and whose fault it is."""
        ran = []
        with state(), at_root(form(lock_view("order:{pk}", wait=0), ran.append)):
            response = ask("post")
        assert response.status_code == status
        assert response.headers["Retry-After"] == hint
        assert response.headers["Cache-Control"] == "no-store"
        assert not ran

    @some_forms
    @every_client
    def test_unavailable(self, form: Form, ask: Ask, settings: Any) -> None:
        """With "run" the view runs without the lock if Redis is away; "skip" in the settings is
        nothing that a view could do."""

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse(current_lease().state)

        with away(), at_root(form(lock_view("order:{pk}", wait=0, unavailable="run"), body)):
            response = ask("post")
        assert (response.status_code, response.content) == (200, b"unlocked")
        settings.REDISLOCK = {"UNAVAILABLE": "skip"}
        with away(), at_root(form(lock_view("order:{pk}"), body)):
            assert ask("post").status_code == 503

    @some_forms
    @every_client
    def test_the_views_own_exception(self, form: Form, ask: Ask, redis: Redis) -> None:
        """The exception comes out as it would without the lock, which is released."""

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            raise ZeroDivisionError

        with at_root(form(lock_view("order:{pk}"), body)):
            with pytest.raises(ZeroDivisionError):
                ask("post")
        eventually(lambda: not redis.exists("redislock:{order:7}"))

    @some_forms
    @every_client
    def test_a_view_without_a_response(self, form: Form, ask: Ask) -> None:
        """Django's own error comes out, which names the view."""
        with at_root(form(lock_view("order:{pk}"), lambda request, pk: None)):
            with pytest.raises(ValueError, match=r"Page|view|page.* returned no HttpResponse"):
                ask("post")

    @some_forms
    def test_only_some_methods_lock(self, form: Form) -> None:
        """Other methods run while somebody else holds the lock."""
        with held_elsewhere("order:7"):
            with at_root(form(lock_view("order:{pk}", wait=0, methods=["PUT"]), ok)):
                assert wsgi("post").status_code == 200

    def test_options_never_lock(self) -> None:
        """Browsers send OPTIONS before other requests, and for pages of other origins."""

        @lock_view("order", wait=0)
        class Page(View):
            pass

        with held_elsewhere("order"), at_root(Page.as_view()):
            assert wsgi("options").status_code == 200
            assert wsgi("get").status_code == 409

    def test_attributes_of_the_view_stay(self) -> None:
        """The view keeps its name and the marks of other decorators, such as csrf_exempt."""

        def view(request: HttpRequest) -> HttpResponse:
            """A page."""
            return HttpResponse()

        view.csrf_exempt = True  # type: ignore[attr-defined]
        locked = lock_view("order")(view)
        assert (locked.__name__, locked.__doc__, locked.csrf_exempt) == ("view", "A page.", True)

    def test_the_label(self) -> None:
        """The label names the view, not the place where Django calls it."""
        labels = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            labels.append(current_lease().label)
            return HttpResponse()

        for form in (forms.function, forms.class_based, forms.dispatch_decorated, forms.method):
            with at_root(form(lock_view("order"), body)):
                wsgi("post")
        function, of_class, dispatch, method = labels
        assert function.startswith("views/forms.py:")
        assert function.endswith("in function.<locals>.view")
        assert of_class == dispatch == "tests.views.forms.page.locals.Page"
        assert method.endswith("in page.<locals>.Page.post")


class TestTwice:
    """A view that is decorated twice with one lock takes it once."""

    @pytest.mark.parametrize("form", TWICE, **by_name)
    @every_client
    def test_one_lock(self, form: Form, ask: Ask, redis: Redis) -> None:
        """It is held until the outer one has ended, and the next request takes it again."""
        taken: list[Any] = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            assert redis.exists("redislock:{order:7}")
            return HttpResponse("done")

        def hear(event: LockEvent, **_: Any) -> None:
            taken.append(event.name)

        lock_acquired.connect(hear)
        with at_root(form(lock_view("order:{pk}"), body)):
            assert [ask("post").status_code for _ in range(2)] == [200, 200]
            with held_elsewhere("order:7"):
                assert ask("post").status_code == 409
        lock_acquired.disconnect(hear)
        assert taken == ["order:7"] * 3  # and that of the test

    def test_two_names(self, redis: Redis) -> None:
        """Each name is a lock of its own."""

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            assert redis.exists("redislock:{order:7}", "redislock:{stock:7}") == 2
            return HttpResponse()

        inner = forms.function(lock_view("stock:{pk}"), body)
        with at_root(lock_view("order:{pk}")(inner)):
            assert wsgi("post").status_code == 200

    def test_two_databases(self, settings: Any) -> None:
        """One name on two aliases is two locks."""
        url = settings.CACHES["default"]["LOCATION"].partition("?")[0]
        settings.CACHES = {**settings.CACHES, "other": entry(f"{url}?db=3")}
        held = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            held.extend(redis_lock("order:7", using=alias).locked() for alias in settings.CACHES)
            return HttpResponse()

        inner = forms.function(lock_view("order:{pk}", using="other"), body)
        with at_root(lock_view("order:{pk}")(inner)):
            assert wsgi("post").status_code == 200
        assert held == [True, True]

    async def test_two_tasks(self) -> None:
        """Views that a view calls beside each other exclude each other, since none of them is
        inside of the other one."""
        running: list[int] = []
        seen: list[int] = []

        @lock_view("order", wait=PATIENCE)
        async def inner(request: HttpRequest) -> HttpResponse:
            running.append(1)
            seen.append(len(running))
            await asyncio.sleep(0.01)
            running.pop()
            return HttpResponse()

        request = RequestFactory().post("/")
        await asyncio.gather(*(inner(request) for _ in range(3)))
        assert seen == [1, 1, 1]

    def test_a_lost_lease(self) -> None:
        """The inner view does not run without the lock."""
        ran = []
        inner = forms.function(lock_view("order:{pk}"), ran.append)

        @lock_view("order:{pk}")
        def outer(request: HttpRequest, pk: int) -> HttpResponse:
            lose_lease("order:7")
            return inner(request, pk)

        with at_root(outer), pytest.raises(LeaseLost):
            wsgi("post")
        assert not ran

    def test_code_around_the_view(self) -> None:
        """What holds the lock and is no view of this request would be waited for in vain."""
        with at_root(forms.function(lock_view("order:{pk}"), ok)), redis_lock("order:7"):
            with pytest.raises(LockReentered, match=r"locks_held_elsewhere\('order:7'\)"):
                wsgi("post")


class TestName:
    def name(self, decorator: Any, form: Form = forms.function, **attributes: Any) -> str:
        names = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            names.append(current_lease().name)
            return HttpResponse()

        request = RequestFactory().post("/7/?cart=a", **attributes)
        request.user = AnonymousUser()
        form(decorator, body)(request, pk=7)
        return str(names[0])

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("order", "order"),
            ("order:{pk}", "order:7"),
            ("order:{pk:03d}", "order:007"),
            ("order:{request.user.pk!s}", "order:None"),
            ("cart:{request.GET[cart]}", "cart:a"),
            (lambda request, pk: f"{request.method}:{pk}", "POST:7"),
        ],
    )
    def test_of_the_arguments(self, name: Any, expected: str) -> None:
        """For functions, methods and classes; `self` is no argument of the view."""
        for form in (forms.function, forms.method, forms.class_based, forms.dispatch_decorated):
            assert self.name(lock_view(name), form) == expected

    def test_none(self) -> None:
        """Without a name, the view's dotted path is the name."""
        assert self.name(lock_view()) == "tests.views.forms.function.locals.view"

    def test_none_of_a_class(self) -> None:
        """Each class that is decorated as a whole has its own lock, whoever defines its
        methods."""
        for form in (forms.class_based, forms.dispatch_decorated):
            assert self.name(lock_view(), form) == "tests.views.forms.page.locals.Page"
        names = []

        class Base(APIView):
            def post(self, request: Any) -> HttpResponse:
                names.append(current_lease().name)
                return HttpResponse()

        one = lock_view()(type("One", (Base,), {}))
        two = lock_view()(type("Two", (Base,), {}))
        for view in (one, two):
            view.as_view()(RequestFactory().post("/"))
        assert [name.rpartition(".")[2] for name in names] == ["One", "Two"]

    def test_of_the_view_itself(self) -> None:
        """`self` is an argument of methods, also in Django REST framework."""

        @lock_view("export:{self.kind}")
        class Export(APIView):
            kind = "csv"

            def post(self, request: Any) -> HttpResponse:
                return HttpResponse(current_lease().name)

        assert Export.as_view()(RequestFactory().post("/")).content == b"export:csv"

    def test_an_argument_that_the_view_does_not_have(self) -> None:
        """The error is raised when the module is imported."""
        with pytest.raises(ValueError, match=r"needs the argument 'id'.*has: request, pk"):
            forms.function(lock_view("order:{id}"), ok)

    def test_an_argument_that_the_url_does_not_have(self) -> None:
        """A class takes any argument, so the error is raised when it is called."""
        with pytest.raises(ValueError, match=r"needs the argument 'id'.*has: pk, self, request"):
            self.name(lock_view("order:{id}"), forms.class_based)

    def test_what_came_with_the_request_can_be_no_name(self) -> None:
        """The client receives 400."""
        view = forms.function(lock_view("cart:{request.GET[cart]}"), ok)
        with at_root(view):
            response = wsgi("post", "/7/?cart={}", raises=False)
        assert response.status_code == 400


class TestConflict:
    def ask(self, accept: str | None = None, form: Form = forms.function, **options: Any) -> Any:
        with held_elsewhere("order:7"):
            with at_root(form(lock_view("order:{pk}", wait=0, **options), ok)):
                return wsgi("post", **({} if accept is None else {"headers": {"accept": accept}}))

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            (None, PROBLEM),
            ("*/*", PROBLEM),
            ("application/json", "application/json"),
            ("application/problem+json, text/html;q=0.5", PROBLEM),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
            ("text/plain", "text/plain"),
            ("image/png", "text/plain"),
        ],
    )
    def test_in_the_form_that_the_client_likes(self, accept: str | None, kind: str) -> None:
        """A browser gets a page, a program gets problem details, others get plain text."""
        response = self.ask(accept)
        assert response.status_code == 409
        assert response.headers["Content-Type"].partition(";")[0] == kind
        text = response.content.decode()
        assert "Conflict" in text
        assert "try again in a moment" in text

    @pytest.mark.parametrize(
        ("redislock", "type"),
        [
            ({}, "about:blank"),
            (
                {"VIEW_PROBLEM_TYPE": "https://shop.example/problems#{code}"},
                "https://shop.example/problems#conflict",
            ),
        ],
    )
    def test_problem_details(self, settings: Any, redislock: Any, type: str) -> None:
        """They have RFC 9457's members and a code, and nothing about the holder. The project
        decides on the address that explains them."""
        settings.REDISLOCK = redislock
        assert json.loads(self.ask().content) == {
            "type": type,
            "title": "Conflict",
            "status": 409,
            "detail": "This is being worked on already. Please try again in a moment.",
            "code": "conflict",
        }

    def test_the_page(self, settings: Any) -> None:
        """The page needs no template engine of the project, and the project may replace it."""
        assert "<h1>Conflict</h1>" in self.ask("text/html").content.decode()
        pages = {"django_redislock/problem.html": "Our own: {{ title }}, {{ detail }}"}
        settings.TEMPLATES = [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", pages)]},
            }
        ]
        assert self.ask("text/html").content.decode().startswith("Our own: Conflict, This is")

    def test_what_comes_from_others_is_escaped(self) -> None:
        """The page contains nothing from the request."""
        with held_elsewhere("order:<b>"):
            view = forms.function(lock_view("order:{request.GET[x]}", wait=0), ok)
            with at_root(view):
                page = wsgi("post", "/7/?x=<b>", headers={"accept": "text/html"})
        assert page.status_code == 409
        assert b"<b>" not in page.content

    @pytest.mark.parametrize("status", [423, 429, 499])
    def test_another_status(self, status: int) -> None:
        """The status stands in the body, too."""
        response = self.ask(status=status)
        assert response.status_code == json.loads(response.content)["status"] == status

    def test_a_status_in_the_settings(self, settings: Any) -> None:
        """VIEW_STATUS holds for all views or for some locks; the argument comes first."""
        settings.REDISLOCK = {"VIEW_STATUS": 429, "LOCKS": {"order:7": {"VIEW_STATUS": 423}}}
        assert self.ask().status_code == 423
        assert self.ask(status=409).status_code == 409
        settings.REDISLOCK = {"VIEW_STATUS": 429}
        assert self.ask().status_code == 429

    @pytest.mark.parametrize("form", [forms.function, forms.coroutine], **by_name)
    @every_client
    def test_a_page_that_fails(
        self, form: Form, ask: Ask, settings: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A context processor that fails does not break the response, and one that uses the ORM
        may do so in an asynchronous view."""
        settings.TEMPLATES = [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": [f"{__name__}.{blocking.__name__}"]},
            }
        ]
        with held_elsewhere("order:7"), at_root(form(lock_view("order:{pk}", wait=0), ok)):
            assert ask("post", headers={"accept": "text/html"}).status_code == 409
            assert "could not be rendered" not in caplog.text
            blocking.fails = True
            response = ask("post", headers={"accept": "text/html"})
            blocking.fails = False
        assert response.status_code == 409
        assert b"<h1>Conflict</h1>" in response.content
        assert "could not be rendered" in caplog.text

    @some_forms
    @every_client
    def test_an_answer_of_ones_own(self, form: Form, ask: Ask) -> None:
        """`response` is a function of the request and the error, which knows the holder."""
        with held_elsewhere("order:7") as lease:
            seen = []

            def answer(request: Any, error: Any) -> HttpResponse:
                seen.append((request.method, type(error), error.holder.owner))
                return HttpResponse("later", status=420)

            with at_root(form(lock_view("order:{pk}", wait=0, response=answer), ok)):
                response = ask("post")
            assert response.status_code == 420
            assert response.headers["Cache-Control"] == "no-store"
            assert response.headers["Retry-After"] == "1"
        assert seen == [("POST", LockNotAcquired, lease.owner)]

    def test_an_answer_that_is_awaited(self) -> None:
        """An asynchronous view may have an asynchronous `response`; its answer is not cached
        either."""

        async def answer(request: Any, error: Any) -> HttpResponse:
            return HttpResponse("later", status=420)

        view = forms.coroutine(lock_view("order:{pk}", wait=0, response=answer), ok)
        with held_elsewhere("order:7"), at_root(view):
            response = wsgi("post")
        assert (response.status_code, response.content) == (420, b"later")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Retry-After"] == "1"

    @pytest.mark.parametrize("form", [forms.function, forms.coroutine])
    def test_an_answer_that_is_none(self, form: Form) -> None:
        """The error names what was forgotten there, and not the view, which was not run."""
        view = form(lock_view("order:{pk}", wait=0, response=lambda request, error: None), ok)
        with held_elsewhere("order:7"), at_root(view):
            with pytest.raises(ValueError, match=r"VIEW_RESPONSE .* but None"):
                wsgi("post")

    def test_an_answer_by_its_path(self, settings: Any) -> None:
        """The settings name the function by its path."""
        settings.REDISLOCK = {"VIEW_RESPONSE": "tests.views.test_lock_view.later"}
        assert self.ask().content == b"LockNotAcquired"

    def test_an_answer_that_is_not_there(self, settings: Any) -> None:
        """The error names the path."""
        settings.REDISLOCK = {"VIEW_RESPONSE": "tests.views.nowhere.later"}
        with pytest.raises(ImproperlyConfigured, match=r"tests\.views\.nowhere\.later"):
            self.ask()

    def test_redis_away_is_an_error_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        """The log has an error: somebody has to look after Redis."""
        with away(), at_root(forms.function(lock_view("order:{pk}", wait=0), ok)):
            wsgi("post")
        (record,) = (r for r in caplog.records if r.name == "django_redislock")
        assert record.levelname == "ERROR"
        assert "in function.<locals>.view was not run" in record.getMessage()

    @pytest.mark.parametrize(
        ("lasted", "held", "hint"),
        [(None, 3, 1), (0.2, 0, 1), (7.5, 0.0, 8), (7.5, 5.0, 3), (7.5, 60.0, 1), (900, 0.0, 30)],
    )
    def test_the_hint(self, lasted: float | None, held: float, hint: int) -> None:
        """The hint is when the holder will be done, if it takes as long as the last one. It is
        bounded, and never the rest of the lease."""
        from django_redislock.base.people import Holder
        from django_redislock.views.responses import retry_after

        holder = Holder("host:1:thread", "here", 1, None, held, 500.0)
        assert retry_after(LockNotAcquired("order", holder, 0.0, 0, lasted)) == hint

    def test_the_hint_knows_the_last_hold(self, redis: Redis) -> None:
        """The server knows how long the last hold was, whichever process it was."""
        value = f"{'a' * 32}|1|1|30000|web|here\treleased|12000000"
        redis.lpush("redislock:{order:7}:history", value)
        assert 10 <= int(self.ask().headers["Retry-After"]) <= 12


def waiters(redis: Redis, name: str) -> int:
    return int(redis.zcard(f"redislock:{{{name}}}:queue"))


class TestWaiting:
    """A worker that waits serves no other request."""

    @pytest.mark.parametrize(
        ("settings_", "arguments", "least"),
        [
            ({"WAIT": 60}, {}, 0),
            ({"WAIT": 0, "VIEW_WAIT": 0.05}, {}, 0.05),
            ({"VIEW_WAIT": 60, "LOCKS": {"order:*": {"VIEW_WAIT": 0}}}, {}, 0),
            ({"VIEW_WAIT": 0, "LOCKS": {"order:*": {"VIEW_WAIT": 0.05, "WAIT": 0}}}, {}, 0.05),
            ({"LOCKS": {"order:*": {"WAIT": 60}}}, {}, 0),
            ({"VIEW_WAIT": 60, "LOCKS": {"order:*": {"VIEW_WAIT": 60}}}, {"wait": 0}, 0),
            ({"LOCKS": {"order:*": {"VIEW_WAIT": 0}}}, {"wait": 0.05}, 0.05),
        ],
    )
    @every_client
    def test_how_long(
        self, settings: Any, ask: Ask, settings_: Any, arguments: Any, least: float
    ) -> None:
        """A view does not wait unless VIEW_WAIT, that of the lock's entry, or the argument says
        so; the last of these counts. WAIT does not apply to views."""
        settings.REDISLOCK = settings_
        waited = []

        def answer(request: Any, error: Any) -> HttpResponse:
            waited.append(error.waited)
            return HttpResponse(status=409)

        view = forms.function(lock_view("order:{pk}", response=answer, **arguments), ok)
        with held_elsewhere("order:7"), at_root(view):
            assert ask("post").status_code == 409
        assert least <= waited[0] < PATIENCE

    @every_client
    def test_max_waiters(self, ask: Ask, redis: Redis) -> None:
        """So many requests of a view wait in one process. One more is refused at once if its lock
        is busy, and runs if it is free. When one has waited, there is room for the next."""
        decorator = lock_view("order:{pk}", wait=None, max_waiters=1)
        form = forms.function if ask is wsgi else forms.coroutine
        with at_root(form(decorator, ok)), ThreadPoolExecutor(2) as others:
            for _ in range(2):
                with held_elsewhere("order:7"):
                    first = others.submit(ask, "post")
                    eventually(lambda: waiters(redis, "order:7") == 1)
                    second = others.submit(ask, "post").result(PATIENCE)
                    assert (second.status_code, second.headers["Retry-After"]) == (409, "1")
                    assert ask("post", "/8/").status_code == 200
                    assert not first.done()
                assert first.result(PATIENCE).status_code == 200


@async_unsafe
def blocking(request: HttpRequest) -> dict[str, Any]:
    """A context processor that may not run in an event loop, like one that uses the ORM."""
    if blocking.fails:
        raise OSError("away")
    return {}


blocking.fails = False  # type: ignore[attr-defined]


def later(request: HttpRequest, error: Exception) -> HttpResponse:
    return HttpResponse(type(error).__name__)


class TestRestFramework:
    @pytest.mark.parametrize("form", REST_FRAMEWORK, **by_name)
    def test_its_own_handler_answers(self, form: Form, settings: Any) -> None:
        """The framework's handler gets an exception whose cause is ours."""
        settings.REST_FRAMEWORK = {
            "EXCEPTION_HANDLER": "tests.views.test_lock_view.our_handler",
        }
        handled.clear()
        with held_elsewhere("order:7"), at_root(form(lock_view("order:{pk}", wait=0), ok)):
            response = wsgi("post", headers={"accept": "application/json"})
        assert response.status_code == 409
        assert response.json() == {
            "detail": "This is being worked on already. Please try again in a moment.",
            "handled": True,
        }
        assert isinstance(handled[0].__cause__, LockNotAcquired)
        assert handled[0].get_codes() == "conflict"

    def test_the_lock_comes_after_permissions(self) -> None:
        """A request without permission does not wait for the lock."""
        from rest_framework.permissions import IsAuthenticated

        @lock_view("order", wait=0)
        class Page(APIView):
            permission_classes = (IsAuthenticated,)

            def post(self, request: Any, pk: int) -> Any:
                pytest.fail("it ran")

        with held_elsewhere("order"), at_root(Page.as_view()):
            assert wsgi("post").status_code == 403

    def test_the_user_is_the_authenticated_one(self) -> None:
        """The template sees the framework's request."""
        from rest_framework.authentication import BaseAuthentication

        class Ada:
            pk = "ada"
            is_authenticated = True

        class Token(BaseAuthentication):
            def authenticate(self, request: Any) -> Any:
                return Ada(), None

        names = []

        @lock_view("checkout:{request.user.pk}")
        class Page(APIView):
            authentication_classes = (Token,)

            def post(self, request: Any, pk: int) -> HttpResponse:
                names.append(current_lease().name)
                return HttpResponse()

        with at_root(Page.as_view()):
            wsgi("post")
        assert names == ["checkout:ada"]

    def test_actions_that_do_not_lock(self) -> None:
        """They need not have the arguments of the name."""

        @lock_view("order:{pk}", methods=["PUT"])
        class Orders(ViewSet):
            def list(self, request: Any) -> HttpResponse:
                return HttpResponse("all")

            def update(self, request: Any, pk: int) -> HttpResponse:
                return HttpResponse(current_lease().name)

        view = Orders.as_view({"get": "list", "put": "update"})
        assert view(RequestFactory().get("/")).content == b"all"
        assert view(RequestFactory().put("/"), pk=7).content == b"order:7"

    def test_outside_of_it(self) -> None:
        """A view that is already made can't be decorated; the error says what to write."""

        class Page(APIView):
            pass

        with pytest.raises(TypeError, match="decorate the class Page"):
            lock_view("order")(Page.as_view())
        with pytest.raises(TypeError, match="nearer to the function than @api_view"):
            lock_view("order")(api_view(["POST"])(lambda request: None))


handled: list[Any] = []


def our_handler(error: Any, context: Any) -> Any:
    handled.append(error)
    response = exception_handler(error, context)
    response.data["handled"] = True
    return response


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"methods": "POST"}, TypeError, r"methods must be a list of methods, such as"),
            ({"methods": [1]}, TypeError, r"methods must be a list"),
            ({"methods": []}, ValueError, r"methods must be in capitals"),
            ({"methods": ["post"]}, ValueError, r"methods must be in capitals"),
            ({"status": 200}, ValueError, r"status must be the HTTP status of an error"),
            ({"status": "409"}, TypeError, r"status must be an HTTP status"),
            ({"response": 409}, TypeError, r"response must be a function of the request and"),
            ({"response": "later"}, TypeError, r"such as 'shop.views.busy'"),
            ({"release": "view"}, ValueError, r"release must be 'exit'.* or 'commit'"),
            ({"wait": -1}, ValueError, r"wait must be 0 or more"),
            ({"max_waiters": -1}, ValueError, r"max_waiters must be 0 or more"),
            ({"max_waiters": 1.5}, TypeError, r"max_waiters must be a number of requests"),
            ({"timeout": 3}, TypeError, r"timeout= is refused"),
            ({"unavailable": "skip"}, ValueError, r"unavailable must be 'raise' or 'run'"),
            ({"unavailable": "ran"}, ValueError, r"unavailable must be 'raise' or 'run'"),
            ({"on_conflict": "skip"}, TypeError, r"lock_view\(\) has no argument 'on_conflict'"),
            ({"reentrant": True}, TypeError, r"lock_view\(\) has no argument 'reentrant'"),
        ],
    )
    def test_arguments(self, arguments: Any, error: type[Exception], match: str) -> None:
        """The error names the argument and says what to write."""
        with pytest.raises(error, match=match):
            lock_view("order", **arguments)

    def test_what_is_no_view(self) -> None:
        """A name, a class without dispatch() and a function without a request are refused."""
        with pytest.raises(TypeError, match=r"decorates a view, not 'order'"):
            lock_view("order")("order")  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"has no dispatch\(\)"):
            lock_view("order")(dict)
        with pytest.raises(TypeError, match=r"called without a request"):
            lock_view("order")(lambda: None)()

    def test_without_parentheses(self) -> None:
        """The error says what to write."""
        with pytest.raises(TypeError, match="needs its parentheses"):
            lock_view(View)
        view = lock_view(lambda request: HttpResponse())
        with pytest.raises(TypeError, match="it needs parentheses"):
            view(RequestFactory().get("/"))

    @pytest.mark.parametrize(
        ("setting", "match"),
        [
            ({"VIEW_STATUS": 200}, r"\['VIEW_STATUS'\]: view_status must be"),
            ({"VIEW_RESPONSE": 1}, r"\['VIEW_RESPONSE'\]: view_response must be"),
            ({"VIEW_WAIT": -1}, r"\['VIEW_WAIT'\]: view_wait must be 0 or more"),
            (
                {"VIEW_PROBLEM_TYPE": "a b"},
                r"\['VIEW_PROBLEM_TYPE'\]: view_problem_type must be a",
            ),
            ({"VIEW_PROBLEM_TYPE": "x:{pk}"}, r"in which \{code\} may stand for the code"),
        ],
    )
    def test_settings(self, setting: Any, match: str) -> None:
        """The error names the setting."""
        with override_settings(REDISLOCK=setting):
            with pytest.raises(ImproperlyConfigured, match=match):
                redis_lock("order")._policy()

    def test_they_say_nothing_to_a_lock(self) -> None:
        """`redis_lock` has no arguments for views."""
        with pytest.raises(TypeError, match="has no argument 'view_status'"):
            redis_lock("order", view_status=409)  # type: ignore[call-arg]


def test_a_conflict_of_another_lock_is_no_conflict_of_the_view() -> None:
    """An exception of the view's own locks comes out."""

    def body(request: HttpRequest, pk: int) -> HttpResponse:
        with redis_lock("another", wait=0):
            return HttpResponse()

    with held_elsewhere("another"), at_root(forms.function(lock_view("order"), body)):
        with pytest.raises(LockNotAcquired):
            wsgi("post")
