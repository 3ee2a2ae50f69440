"""`idempotent_view(store="db")`: the response is kept in the transaction of the view."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import RequestFactory, TestCase, override_settings
from django.utils.decorators import method_decorator
from redis import Redis
from rest_framework.response import Response

from django_redislock.contrib.once import step
from django_redislock.contrib.once.models import Record
from django_redislock.locks import in_transaction
from django_redislock.testing import redis_unavailable
from django_redislock.views import idempotent_view, lock_view
from tests.models import Shop
from tests.test_decorators import held_elsewhere
from tests.views import forms
from tests.views.forms import REST_FRAMEWORK, at_root
from tests.views.test_idempotent_view import Counter, post
from tests.waiting import PATIENCE

Form = Callable[..., Any]

on_sqlite = pytest.mark.django_db(transaction=True, databases=["default", "other"])
by_name = {"ids": lambda one: one.__name__}
SYNCHRONOUS = [
    *(forms.function, forms.class_based, forms.method, forms.method_decorated),
    *(forms.dispatch_decorated, *REST_FRAMEWORK),
]
ASYNCHRONOUS = [forms.coroutine, forms.async_method]
TWICE = [
    *map(forms.twice, SYNCHRONOUS),
    *(forms.child_and_parent, forms.api_child_and_parent),
    *(forms.class_and_method, forms.method_and_super),
]
in_database = idempotent_view(store="db")


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


class Paying(Counter):
    """A body that writes a row whenever it runs."""

    def __call__(self, request: HttpRequest, pk: int) -> Any:
        Shop.objects.create(name=f"payment {Shop.objects.count()}")
        return super().__call__(request, pk)


def payments() -> int:
    return Shop.objects.count()


class TestOnce:
    @on_sqlite
    @pytest.mark.parametrize("form", SYNCHRONOUS, **by_name)
    @pytest.mark.parametrize("away", [False, True])
    def test_a_replay(self, redis: Redis, form: Form, away: bool) -> None:
        """As with Redis, and without it. No response goes there."""
        body = Paying(headers={"X-Order": "7"}, content_type="text/plain")

        def ask() -> list[Any]:
            return [post(), post(), post(data={"amount": 2})]

        with at_root(form(in_database, body)):
            if away:
                with redis_unavailable():
                    first, second, other = ask()
            else:
                first, second, other = ask()
        assert (body.runs, payments()) == (1, 1)
        assert first.content == second.content == b"run 1"
        assert (second.status_code, second.headers["X-Order"]) == (201, "7")
        assert second.headers["Idempotent-Replayed"] == "true"
        assert other.status_code == 422
        assert not redis.keys("redislock:{idempotency:*}:record")

    @on_sqlite
    @pytest.mark.parametrize("form", TWICE, **by_name)
    def test_decorated_twice(self, form: Form) -> None:
        body = Paying()
        with at_root(form(in_database, body)):
            first, second = post(), post()
        assert (body.runs, payments()) == (1, 1)
        assert first.content == second.content == b"run 1"

    @on_sqlite
    @pytest.mark.parametrize("form", SYNCHRONOUS, **by_name)
    def test_under_atomic_requests(self, atomic_requests: None, form: Form) -> None:
        """The transaction of the request is taken."""
        body = Paying()
        with at_root(form(in_database, body)):
            assert [post().content, post().content] == [b"run 1", b"run 1"]
        assert (body.runs, payments()) == (1, 1)

    @on_sqlite
    def test_in_a_test_case(self) -> None:
        """Django's TestCase, which commits nothing, is no hindrance."""
        body = Paying()

        class InTestCase(TestCase):
            def runTest(self) -> None:  # noqa: N802  # the name that unittest calls
                with at_root(forms.function(in_database, body)):
                    assert [post().content, post().content] == [b"run 1", b"run 1"]

        result = InTestCase().run()
        assert result is not None
        assert result.wasSuccessful(), result.errors
        assert body.runs == 1

    @pytest.mark.django_db(transaction=True, databases=["postgres"])
    def test_while_it_runs(self) -> None:
        """A request with the same key gets 409 at once."""
        answers = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            with ThreadPoolExecutor(1) as another:
                answers.append(another.submit(ask_elsewhere).result(PATIENCE))
            return HttpResponse("done")

        def ask_elsewhere() -> Any:
            try:
                return post()
            finally:
                connections.close_all()

        with at_root(forms.function(idempotent_view(store="db", using="postgres"), body)):
            assert post().status_code == 200
        assert answers[0].status_code == 409
        assert answers[0].headers["Retry-After"] == "1"

    @on_sqlite
    def test_the_lock_is_held_a_moment_longer(self) -> None:
        """The record is the answer, whoever holds the lock."""
        body = Paying()
        with at_root(forms.function(in_database, body)):
            post()
            name = Record.objects.get().name
            with held_elsewhere(name):
                assert post().content == b"run 1"

    @on_sqlite
    def test_another_database(self) -> None:
        body = Counter()
        with at_root(forms.function(idempotent_view(store="db", using="other"), body)):
            assert [post().content, post().content] == [b"run 1", b"run 1"]
        assert Record.objects.using("other").count() == 1


@on_sqlite
class TestWhatIsNotKept:
    @pytest.mark.parametrize("form", [forms.function, forms.api_class], **by_name)
    @pytest.mark.parametrize("around", [False, True])
    def test_an_exception(self, form: Form, around: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """All is rolled back, and the next request runs the view."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", around)

        def fails(response: Any) -> Any:
            if body.runs == 1:
                raise ZeroDivisionError
            return response

        body = Paying(fails)
        with at_root(form(in_database, body)):
            with pytest.raises(ZeroDivisionError):
                post()
            assert (payments(), Record.objects.count()) == (0, 0)
            assert post().content == b"run 2"
        assert payments() == 1

    @pytest.mark.parametrize("around", [False, True])
    @pytest.mark.parametrize(
        "response", [{"status": 503}, {"status": 401}, {"headers": {"Retry-After": "1"}}]
    )
    def test_a_response_that_may_change(
        self, response: Any, around: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It undoes what the view has written: the next request is going to write it again."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", around)
        body = Paying(**response)
        with at_root(forms.function(in_database, body)):
            assert [post().content, post().content] == [b"run 1", b"run 2"]
        assert (payments(), Record.objects.count()) == (0, 0)

    @pytest.mark.parametrize("around", [False, True])
    def test_an_error_of_the_database_that_is_caught(
        self, around: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing can be written in that transaction any more: the response is sent, as Django
        does it, and all is rolled back."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", around)
        Shop.objects.create(name="taken")

        def takes(response: Any) -> Any:
            try:
                Shop.objects.create(name="taken" if body.runs == 1 else "free")
            except IntegrityError:
                return HttpResponse("taken", status=400)
            return response

        body = Paying(takes)
        with at_root(forms.function(in_database, body)):
            assert [post().content for _ in range(3)] == [b"taken", b"run 2", b"run 2"]
        assert payments() == 3

    def test_a_busy_lock(self) -> None:
        body = Paying()
        with at_root(in_database(lock_view("stock")(body.__call__))):
            with held_elsewhere("stock"):
                assert post().status_code == 409
            assert post().content == b"run 1"

    def test_a_stream(self, caplog: pytest.LogCaptureFixture) -> None:
        """The work is done, and its record says so."""
        body = Paying(lambda response: StreamingHttpResponse([b"a"]))
        with at_root(forms.function(in_database, body)):
            assert post().getvalue() == b"a"
            again = post()
        assert (again.status_code, payments()) == (409, 1)
        assert "was carried out, and answered with the status 200" in again.json()["detail"]

    def test_a_record_that_cant_be_read(self, caplog: pytest.LogCaptureFixture) -> None:
        body = Paying()
        with at_root(forms.function(in_database, body)):
            post()
            Record.objects.update(value=b"\x00")
            assert post().json()["code"] == "answer_not_kept"
        row = f"the row {Record.objects.get().pk} of redislock_once_record can't be read"
        assert row in caplog.text
        assert "delete the row" in caplog.text


@on_sqlite
class TestExclude:
    @pytest.mark.parametrize("store", ["redis", "db"])
    def test_fields_and_headers(self, redis: Redis, store: Any) -> None:
        """They are sent, and not kept."""
        cards = [{"number": "4242", "brand": "visa"}]

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            response = JsonResponse({"id": 7, "cards": cards, "number": "4711"})
            response["X-Secret"] = "s3cret"
            response["ETag"] = '"of the whole"'
            response.set_cookie("token", "s3cret")
            return response

        decorator = idempotent_view(
            store=store, exclude=["number"], exclude_headers=["x-secret", "Set-Cookie"]
        )
        with at_root(forms.function(decorator, body)):
            first, second = post(), post()
            other = post(data={"amount": 2})
        assert first.json() == {"id": 7, "cards": cards, "number": "4711"}
        assert (first.headers["X-Secret"], first.cookies["token"].value) == ("s3cret", "s3cret")
        assert second.json() == {"id": 7, "cards": [{"brand": "visa"}]}
        assert second.headers["Idempotent-Replayed"] == "true"
        assert not {"X-Secret", "ETag"} & set(second.headers)
        assert not second.cookies
        assert other.status_code == 422
        for key in redis.keys("redislock:{idempotency:*}:record"):
            assert b"4242" not in redis.get(key)
            assert b"s3cret" not in redis.get(key)

    def test_of_rest_framework(self) -> None:
        def body(request: Any, pk: int) -> Response:
            return Response({"id": 7, "token": "s3cret"})

        with at_root(forms.api_class(idempotent_view(store="db", exclude=["token"]), body)):
            post()
            assert json.loads(post().content) == {"id": 7}

    @pytest.mark.parametrize(
        ("content", "content_type"), [("<p>4242</p>", "text/html"), ("{", "application/json")]
    )
    def test_no_json(
        self, content: str, content_type: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It can't be kept without the fields, so it is not kept."""

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse(content, content_type=content_type)

        with at_root(forms.function(idempotent_view(store="db", exclude=["number"]), body)):
            assert post().status_code == 200
            assert post().status_code == 409
        assert "its response can't be kept" in caplog.text

    def test_nothing_to_leave_out(self) -> None:
        with at_root(forms.function(idempotent_view(exclude=["number"]), respond_empty)):
            assert [post().status_code, post().status_code] == [204, 204]


def respond_empty(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(status=204)


@on_sqlite
class TestTransactions:
    def test_inside_of_another_one(self) -> None:
        """Its record would end with that of somebody else."""
        body = Paying()
        view = transaction.atomic(forms.function(in_database, body))
        with at_root(view), pytest.raises(transaction.TransactionManagementError):
            post()
        assert body.runs == 0

    def test_an_insert_that_the_database_refuses(
        self, atomic_requests: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the transaction of a request, that one is rolled back, and the client comes again."""
        monkeypatch.setattr(in_transaction, "_code", lambda error: "40001")
        body = Paying()
        before = []

        def view(request: HttpRequest, pk: int) -> Any:
            before.append(Shop.objects.create(name="before"))
            return in_database(body)(request, pk=pk)

        with at_root(view), refusing_inserts(1):
            refused = post()
            assert (refused.status_code, refused.headers["Retry-After"]) == (409, "1")
            assert payments() == 0
            assert post().content == b"run 1"
        assert payments() == 2

    @pytest.mark.parametrize("times", [1, 2, 3])
    def test_one_that_is_repeated(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        """In our own transaction, a new one is begun, twice."""
        monkeypatch.setattr(in_transaction, "_code", lambda error: "40001")
        with at_root(forms.function(in_database, Paying())), refusing_inserts(times):
            assert post().status_code == (409 if times == 3 else 201)

    def test_a_template(self, tmp_path: Any) -> None:
        """It is rendered in the transaction."""

        def inside() -> str:
            seen.append(connection.in_atomic_block)
            return "7"

        seen: list[bool] = []
        loader = ("django.template.loaders.locmem.Loader", {"a.html": "{{ pk }}"})
        templates = [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {"loaders": [loader]},
            }
        ]
        with override_settings(TEMPLATES=templates):

            def view(request: HttpRequest, pk: int) -> Any:
                return TemplateResponse(request, "a.html", {"pk": inside})

            with at_root(in_database(view)):
                assert [post().content, post().content] == [b"7", b"7"]
        assert seen == [True]


def refusing_inserts(times: int) -> Any:
    """The next so many INSERTs of records fail."""
    left = [times]

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT") and "redislock_once_record" in sql and left[0]:
            left[0] -= 1
            raise OperationalError("could not serialize access")
        return execute(sql, params, many, context)

    return connection.execute_wrapper(refuse)


@on_sqlite
class TestSteps:
    def test_a_failure_after_a_step(self) -> None:
        """The next request goes on. One with another payload gets 422."""
        seen = []

        @in_database
        def view(request: HttpRequest, pk: int) -> HttpResponse:
            with step("charged") as charged:
                seen.append(charged.done)
                charged.result = "ch_1"
            if len(seen) == 1:
                raise ZeroDivisionError
            return HttpResponse("done")

        with at_root(view):
            with pytest.raises(ZeroDivisionError):
                post()
            assert post(data={"amount": 2}).status_code == 422
            assert [post().content, post().content] == [b"done", b"done"]
        assert seen == [False, True]

    def test_a_response_that_may_change(self) -> None:
        """The step stays, and the next request goes on at once."""
        seen = []

        @in_database
        def view(request: HttpRequest, pk: int) -> HttpResponse:
            with step("charged") as charged:
                seen.append(charged.done)
            Shop.objects.create(name="after")
            return HttpResponse(status=503 if len(seen) == 1 else 200)

        with at_root(view):
            assert [post().status_code for _ in range(3)] == [503, 200, 200]
        assert (seen, payments()) == ([False, True], 1)


@on_sqlite
class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"store": "database"}, ValueError, "store must be 'redis' or 'db'"),
            ({"store": "db", "ttl": 60}, TypeError, "ttl is for store='redis'"),
            ({"using": "other"}, TypeError, "using is the database of store='db'"),
            ({"store": "db", "using": 7}, TypeError, "using must be an alias of DATABASES"),
            ({"exclude": "token"}, TypeError, "exclude must be a list of names"),
            ({"exclude_headers": [7]}, TypeError, "exclude_headers must be a list of names"),
        ],
    )
    def test_arguments(self, options: Any, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            idempotent_view(**options)

    def test_coroutines(self) -> None:
        """Django's transactions are synchronous."""
        for form in ASYNCHRONOUS:
            with pytest.raises(TypeError, match="is for synchronous views"):
                form(in_database, Counter())

    def test_an_asynchronous_class(self) -> None:
        view = method_decorator(in_database, name="dispatch")(forms.async_page(Counter()))
        with at_root(view.as_view()), pytest.raises(TypeError, match="is for synchronous views"):
            forms.asgi("post", headers={"idempotency-key": "1", "authorization": "1"})

    def test_without_the_app(self) -> None:
        """The error says what to write, when the view is decorated."""
        with override_settings(INSTALLED_APPS=["django_redislock", "tests"]):
            with pytest.raises(ImproperlyConfigured, match=r"INSTALLED_APPS \+= \['django_redi"):
                forms.function(in_database, Counter())

    def test_in_an_event_loop(self) -> None:
        """A synchronous view that is called there is refused, as by the ORM."""

        async def call() -> None:
            request = RequestFactory().post("/", headers={"idempotency-key": "1"})
            idempotent_view(store="db", scope=lambda request: "")(respond_empty)(request, 7)

        with pytest.raises(SynchronousOnlyOperation):
            asyncio.run(call())
