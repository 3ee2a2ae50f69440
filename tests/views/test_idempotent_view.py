"""`idempotent_view`: one execution per key, on every kind of view."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory
from django.test.client import encode_multipart
from django.utils.functional import lazy
from django.utils.translation import gettext_lazy
from django.views.decorators.clickjacking import xframe_options_exempt
from redis import Redis
from rest_framework.parsers import FileUploadParser
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redislock import current_lease, redis_lock
from django_redislock.lease.watchdog import Watchdog
from django_redislock.signals import lock_not_acquired
from django_redislock.views import idempotency, idempotent_view, lock_view
from tests.models import Shop
from tests.test_decorators import held_elsewhere
from tests.views import forms
from tests.views.forms import CLIENTS, FORMS, REST_FRAMEWORK, SOME, at_root, wsgi
from tests.waiting import PATIENCE, eventually

Form = Callable[..., Any]
Ask = Callable[..., Any]

by_name = {"ids": lambda one: one.__name__}
every_form = pytest.mark.parametrize("form", FORMS, **by_name)
some_forms = pytest.mark.parametrize("form", SOME, **by_name)
every_client = pytest.mark.parametrize("ask", CLIENTS, **by_name)
on_sqlite = pytest.mark.django_db(transaction=True, databases=["default", "other"])


class Counter:
    """A body that counts how often it runs, and answers with that. `change` may replace the
    response."""

    def __init__(self, change: Callable[[Any], Any] | None = None, **response: Any) -> None:
        self.runs = 0
        self._change = change
        self._response = {"status": 201, **response}

    def __call__(self, request: HttpRequest, pk: int) -> Any:
        self.runs += 1
        response = HttpResponse(f"run {self.runs}", **self._response)
        return self._change(response) if self._change else response


def post(ask: Ask = wsgi, key: str = '"8e03978e"', data: Any = None, **more: Any) -> Any:
    headers = {"idempotency-key": key, "authorization": "Bearer 1", **more.pop("headers", {})}
    return ask("post", data={"amount": 1} if data is None else data, headers=headers, **more)


class TestOnce:
    @every_form
    @every_client
    def test_a_replay(self, form: Form, ask: Ask) -> None:
        """The second request gets the first response, and a header that says so."""
        body = Counter(headers={"X-Order": "7"}, content_type="text/plain")
        with at_root(form(idempotent_view(), body)):
            first, second = post(ask), post(ask)
        assert body.runs == 1
        assert first.content == second.content == b"run 1"
        assert first.status_code == second.status_code == 201
        assert second.headers["X-Order"] == "7"
        assert second.headers["Content-Type"] == "text/plain"
        assert "Idempotent-Replayed" not in first.headers
        assert second.headers["Idempotent-Replayed"] == "true"

    @pytest.mark.parametrize("form", forms.TWICE, **by_name)
    @every_client
    def test_decorated_twice(self, form: Form, ask: Ask) -> None:
        """A class and its parent, for example: the outer one answers the second request."""
        body = Counter()
        with at_root(form(idempotent_view(), body)):
            first, second = post(ask), post(ask)
        assert body.runs == 1
        assert first.content == second.content == b"run 1"
        assert second.headers["Idempotent-Replayed"] == "true"

    @some_forms
    @every_client
    def test_another_payload(self, form: Form, ask: Ask) -> None:
        """The same key can't be used for something else."""
        body = Counter()
        with at_root(form(idempotent_view(), body)):
            post(ask)
            response = post(ask, data={"amount": 2})
        assert (response.status_code, body.runs) == (422, 1)
        assert response.headers["Cache-Control"] == "no-store"

    @some_forms
    @every_client
    def test_while_it_runs(self, form: Form, ask: Ask) -> None:
        """A request with the same key receives 409 while the first one runs."""
        answers = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            with ThreadPoolExecutor(1) as another:
                answers.append(another.submit(post).result(PATIENCE))
            return HttpResponse("done")

        with at_root(form(idempotent_view(), body)):
            assert post(ask).status_code == 200
            assert post(ask).status_code == 200
        (meanwhile,) = answers
        assert meanwhile.status_code == 409
        assert meanwhile.headers["Retry-After"] == "1"

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_client_goes_away(
        self, redis: Redis, caplog: pytest.LogCaptureFixture, fails: bool
    ) -> None:
        """An asynchronous view runs to its end, since the client will ask again."""
        runs = []

        async def gone() -> Any:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def body(request: HttpRequest, pk: int) -> HttpResponse:
                runs.append(pk)
                if len(runs) == 1:
                    inside.set()
                    await go_on.wait()
                if fails and len(runs) == 1:
                    raise ZeroDivisionError
                return HttpResponse(f"run {len(runs)}")

            view = idempotent_view(scope=lambda request: "")(body)
            request = RequestFactory().post("/", headers={"idempotency-key": "1"})
            first = asyncio.create_task(view(request, 7))
            await inside.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await view(request, 7)).status_code == 409
            go_on.set()
            while (second := await view(request, 7)).status_code == 409:
                await asyncio.sleep(0.002)
            return second

        second = asyncio.run(asyncio.wait_for(gone(), PATIENCE))
        assert second.content == (b"run 2" if fails else b"run 1")
        assert len(runs) == 1 + fails
        assert ("failed after its client had gone away" in caplog.text) == fails

    def test_other_methods(self) -> None:
        """GET and PUT run each time: they are, or should be, idempotent by themselves."""
        body = Counter()
        with at_root(idempotent_view()(body.__call__)):
            for method in ("get", "put", "get", "put"):
                wsgi(method, headers={"idempotency-key": '"1"'})
        assert body.runs == 4

    def test_after_its_time(self, redis: Redis) -> None:
        """The response is kept for `ttl` seconds."""
        body = Counter()
        with at_root(forms.function(idempotent_view(ttl=900), body)):
            post()
            (key,) = redis.keys("redislock:{idempotency:*}:record")
            assert 890_000 < redis.pttl(key) <= 900_000
            redis.delete(key)
            post()
        assert body.runs == 2


class TestKey:
    @pytest.mark.parametrize(
        "key",
        [
            *["", " ", '""', '"', '"a', 'a"', "a b", "ä", '"ä"', "a" * 256, "1" * 256],
            *['"\\a"', '"a", "b"'],
            *['"a";', '"a" ;b', '"a";B', '"a";b=', '"a";b="', '"a";b=c d', '"a"b', '"";b'],
        ],
    )
    def test_malformed(self, key: str) -> None:
        """A malformed key is refused, whether a key is required or not."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            response = post(key=key)
        assert (response.status_code, body.runs) == (400, 0)

    def test_with_quotes_and_without(self) -> None:
        """The draft wants quotes and many clients omit them: it is the same key."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            for key in ('"a-1"', "a-1", ' "a-1" ', '"a \\" b"', '"a \\" b"'):
                post(key=key)
        assert body.runs == 2

    @pytest.mark.parametrize(
        "parameters",
        [";b", ";b=1", ";b=-1.5; c", ';b="x\\" ;"', ";*b_-.*=*tok/en:", ";b=:aGk=:;c=?0", ";b;b"],
    )
    def test_parameters(self, parameters: str) -> None:
        """Parameters of structured fields are ignored, however many there are."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            for key in ('"a"', f'"a"{parameters}', f'"a"{parameters * 100}'):
                assert post(key=key).status_code == 201
        assert body.runs == 1

    @some_forms
    @every_client
    def test_required_and_missing(self, form: Form, ask: Ask) -> None:
        """Without a required key, a request receives 400 with the reason."""
        body = Counter()
        with at_root(form(idempotent_view(required=True), body)):
            response = ask("post", headers={"accept": "application/json"})
        assert (response.status_code, body.runs) == (400, 0)
        assert "needs an Idempotency-Key header" in json.loads(response.content)["detail"]

    def test_not_required(self) -> None:
        """Without a key, each request is carried out."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            assert [wsgi("post").content for _ in range(2)] == [b"run 1", b"run 2"]

    @on_sqlite
    def test_of_a_user(self, django_user_model: Any, settings: Any) -> None:
        """Two users may have keys that are spelled the same."""
        settings.MIDDLEWARE = [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ]
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
        settings.SESSION_SERIALIZER = "django.contrib.sessions.serializers.JSONSerializer"
        for form in (forms.function, forms.coroutine):
            body = Counter()
            with at_root(form(idempotent_view(), body)):
                for name in ("Ada", "Grace", "Ada"):
                    user, _ = django_user_model.objects.get_or_create(username=name)
                    client = Client()
                    client.force_login(user)
                    client.post("/7/", headers={"idempotency-key": form.__name__})
            assert body.runs == 2

    def test_of_a_user_without_a_key(self) -> None:
        """A user without a primary key is an error: such users would share their keys."""

        class Key:
            is_authenticated, pk = True, None

        request = RequestFactory().post("/", headers={"idempotency-key": "1"})
        request.user = Key()
        with pytest.raises(ImproperlyConfigured, match=r"Write idempotent_view\(scope="):
            forms.function(idempotent_view(), Counter())(request, 7)

    def test_a_scope_that_fails(self) -> None:
        """An exception of the project's scope comes out; it is no fault of the client."""

        def scope(request: HttpRequest) -> str:
            raise ValueError("secret")

        for form in (forms.function, forms.coroutine):
            with at_root(form(idempotent_view(scope=scope), Counter())):
                with pytest.raises(ValueError, match="secret"):
                    post()

    def test_of_a_scope_that_is_no_unicode(self) -> None:
        """A scope may contain half of a surrogate pair, which JSON can bring in."""
        view = idempotent_view(scope=lambda request: "\ud800")
        with at_root(forms.function(view, Counter())):
            assert post().status_code == 201

    def test_no_secret_is_in_the_names(self, redis: Redis) -> None:
        """The names of locks and records don't contain the key."""
        with at_root(forms.function(idempotent_view(), Counter())):
            post(key="sesame")
        assert not [key for key in redis.keys("*") if b"sesame" in key]

    @pytest.mark.parametrize(
        ("key", "shown"), [("8e03978e-40d5-43e8", "8e03978e…, "), ("sesame", "ses…, ")]
    )
    def test_the_lock_is_found_by_its_key(self, key: str, shown: str) -> None:
        """The label has the beginning of the key, and never all of it."""

        def look(response: Any) -> Any:
            labels.append(current_lease().label)
            return response

        labels: list[str] = []
        with at_root(forms.function(idempotent_view(), Counter(look))):
            post(key=key)
        assert labels[0].startswith(f"Idempotency-Key {shown}views/forms.py:")


class TestWhose:
    """If two clients send the same key and the same body, neither gets the other's response."""

    placed: list[str]

    def order(self, request: Any, pk: int) -> HttpResponse:
        """A view that authenticates by itself, and answers with a secret."""
        token = request.headers.get("Authorization") or request.headers["X-Api-Key"]
        self.placed.append(token)
        response = HttpResponse(f"card of {token}")
        response.set_cookie("login", token, httponly=True)
        return response

    @pytest.fixture(autouse=True)
    def _nothing_placed(self) -> None:
        self.placed = []

    @every_form
    @every_client
    def test_of_a_token(self, form: Form, ask: Ask) -> None:
        """A client with another `Authorization` has its own order and sees nothing of the first;
        the same client gets its own response again."""
        with at_root(form(idempotent_view(), self.order)):
            first, other, again = (
                post(ask, headers={"authorization": token})
                for token in ("Bearer A", "Bearer B", "Bearer A")
            )
        assert self.placed == ["Bearer A", "Bearer B"]
        assert other.content == b"card of Bearer B"
        assert other.cookies["login"].value == "Bearer B"
        assert (again.content, again.cookies["login"].value) == (first.content, "Bearer A")

    @some_forms
    @every_client
    def test_of_nobody(
        self, form: Form, ask: Ask, caplog: pytest.LogCaptureFixture, settings: Any
    ) -> None:
        """A request that only the view can identify is refused. The log tells the developer what
        to write; the client is told only with DEBUG."""
        settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": []}
        headers = {"idempotency-key": "1", "x-api-key": "A", "accept": "application/json"}
        for debug in (False, True):
            settings.DEBUG = debug
            with at_root(form(idempotent_view(), self.order)):
                response = ask("post", headers=headers)
            assert (response.status_code, self.placed) == (403, [])
            detail = json.loads(response.content)["detail"]
            assert "no user, no session and no Authorization" in detail
            assert ("Write @idempotent_view(scope=" in detail) == debug
        assert "Write @idempotent_view(scope=" in caplog.text

    @every_client
    def test_a_scope_for_what_we_cannot_know(self, ask: Ask) -> None:
        """A scope tells API keys apart. A request for which it returns None is refused."""
        view = forms.function(
            idempotent_view(scope=lambda request: request.headers.get("X-Api-Key")), self.order
        )
        with at_root(view):
            answers = [
                ask("post", headers={"idempotency-key": "1", **key}).content
                for key in ({"x-api-key": "A"}, {"x-api-key": "B"}, {"x-api-key": "A"})
            ]
            refused = ask("post", headers={"idempotency-key": "1"})
        assert answers == [b"card of A", b"card of B", b"card of A"]
        assert (refused.status_code, self.placed) == (403, ["A", "B"])

    @pytest.mark.parametrize("form", [forms.function, forms.coroutine], **by_name)
    def test_of_a_session(self, form: Form, settings: Any) -> None:
        """Visitors that have not logged in are told apart by session and `Authorization`."""
        from django.contrib.sessions.backends.cache import SessionStore

        body = Counter()
        view = form(idempotent_view(), body)
        for session_key, token in [("a" * 32, "1"), ("b" * 32, "1"), ("a" * 32, "2")] * 2:
            request = RequestFactory().post(
                "/", headers={"idempotency-key": "1", "authorization": token}
            )
            request.session = SessionStore(session_key)
            request.user = AnonymousUser()
            response = view(request, pk=7)
            if asyncio.iscoroutine(response):
                asyncio.run(response)
        assert body.runs == 3

    def test_of_users_of_two_models(self) -> None:
        """Users of two models with the same primary key differ; a proxy model's user is the
        same."""

        class Proxy(User):
            class Meta:
                app_label = "views"
                proxy = True

        class Customer:
            is_authenticated, pk = True, 1

        body = Counter()
        view = forms.function(idempotent_view(), body)
        answers = []
        for user in (User(pk=1), Customer(), Proxy(pk=1)):
            request = RequestFactory().post("/", headers={"idempotency-key": "1"})
            request.user = user  # type: ignore[assignment]
            answers.append(view(request, pk=7).content)
        assert answers == [b"run 1", b"run 2", b"run 1"]

    def test_a_host_however_it_is_spelled(self) -> None:
        """A project may serve several tenants by their hosts. Capitals, a default port and a dot
        at the end make no other tenant of a host; another name or port does."""
        body = Counter()
        hosts = ["shop.example", "SHOP.Example", "shop.example:80", "shop.example:443"]
        others = ["shop.example:8000", "shop.example:8000", "other.example"]
        with at_root(forms.function(idempotent_view(), body)):
            for host in [*hosts, "shop.example.", *others]:
                post(headers={"host": host})
            assert post(headers={"host": "shop.example:99999"}).status_code == 201
        assert body.runs == 4


class TestAfterwards:
    """Once the first request has been carried out, its response is available at once."""

    @some_forms
    @every_client
    def test_nobody_needs_the_lock(self, form: Form, ask: Ask, redis: Redis) -> None:
        """Replays don't take the lock, so simultaneous requests don't hinder each other."""
        body = Counter()
        asked_for: list[Any] = []

        def hear(event: Any, **_: Any) -> None:
            asked_for.append(event)

        with at_root(form(idempotent_view(), body)):
            post(ask)
            (key,) = redis.keys("redislock:{idempotency:*}:record")
            with held_elsewhere(key.decode().partition("{")[2].partition("}")[0]):
                lock_not_acquired.connect(hear)
                assert post(ask).content == b"run 1"
                assert post(ask, data={"amount": 2}).status_code == 422
        assert (body.runs, asked_for) == (1, [])

    @every_client
    def test_just_before(self, ask: Ask, monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
        """A request that comes while the response is about to be written waits a moment for it."""
        monkeypatch.setattr(idempotency, "KEY_WAIT", PATIENCE)
        answers = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            answers.append(others.submit(post, ask))
            eventually(lambda: redis.keys("redislock:{idempotency:*}:queue"))
            return HttpResponse("once")

        form = forms.function if ask is wsgi else forms.coroutine
        with ThreadPoolExecutor(1) as others, at_root(form(idempotent_view(), body)):
            post(ask)
            assert answers[0].result(PATIENCE).content == b"once"
        assert len(answers) == 1

    @every_client
    def test_while_others_look(
        self, ask: Ask, monkeypatch: pytest.MonkeyPatch, redis: Redis
    ) -> None:
        """A request that does not get the lock in that moment looks for a record once more."""
        monkeypatch.setattr(idempotency, "KEY_WAIT", 0.5)
        body = Counter()
        form = forms.function if ask is wsgi else forms.coroutine
        with ThreadPoolExecutor(1) as others, at_root(form(idempotent_view(), body)):
            post(ask)
            (key,) = redis.keys("redislock:{idempotency:*}:record")
            redis.rename(key, "redislock-aside")
            with held_elsewhere(key.decode().partition("{")[2].partition("}")[0]):
                answer = others.submit(post, ask)
                eventually(lambda: redis.keys("redislock:{idempotency:*}:queue"))
                redis.rename("redislock-aside", key)
                assert answer.result(PATIENCE).content == b"run 1"


def with_policy(value: Any) -> Callable[[HttpResponse], HttpResponse]:
    """Mark a response with a Content Security Policy, as Django's decorators do."""

    def mark(response: HttpResponse) -> HttpResponse:
        response._csp_config = {"img-src": value}  # type: ignore[attr-defined]
        return response

    return mark


def lazily_fails() -> str:
    raise LookupError("no such text")


def streamed(response: HttpResponse) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([response.content]), status=201)


class TestNotKept:
    """A response that can't be kept is sent; only the fact that the view has run is kept."""

    def twice(self, ask: Ask, form: Form, body: Any, **options: Any) -> Any:
        with at_root(form(idempotent_view(**options), body)):
            first = post(ask)
            sent = b"".join(first) if first.streaming else first.content
            again = post(ask, headers={"accept": "application/json"})
            another = post(ask, data={"amount": 2})
        assert sent.startswith(b"run 1")
        assert first.status_code == 201
        assert again.status_code == 409
        assert "Retry-After" not in again.headers
        detail = json.loads(again.content)["detail"]
        assert "was carried out, and answered with the status 201" in detail
        assert another.status_code == 422
        assert body.runs == 1
        return again

    @some_forms
    @every_client
    def test_something_that_json_has_not(
        self, form: Form, ask: Ask, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The view has run, so its response is sent, and it is not run again."""
        again = self.twice(ask, form, Counter(with_policy(object())))
        if form not in REST_FRAMEWORK:
            assert json.loads(again.content)["code"] == "answer_not_kept"
        assert "its response can't be kept: JSON can't write a part of it" in caplog.text

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (
                with_policy(lazy(lazily_fails, str)()),
                "JSON can't write a part of it: a lazy text failed",
            ),
            (streamed, "can't be kept: it is a streaming response"),
        ],
        ids=["a lazy text that fails", "a stream"],
    )
    def test_other_reasons(self, change: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
        """The reason is logged."""
        self.twice(wsgi, forms.function, Counter(change))
        assert why in caplog.text

    @every_client
    @pytest.mark.parametrize(("size", "kept"), [(1000, True), (2000, False)])
    def test_too_large(
        self, ask: Ask, redis: Redis, caplog: pytest.LogCaptureFixture, size: int, kept: bool
    ) -> None:
        """Redis does not keep more than `max_size` bytes, headers and cookies included."""

        def enlarge(response: HttpResponse) -> HttpResponse:
            response.write("x" * size)
            return response

        body = Counter(enlarge)
        if kept:
            with at_root(forms.function(idempotent_view(max_size=1500), body)):
                assert post(ask).content == post(ask).content
            return
        self.twice(ask, forms.function, body, max_size=1500)
        assert "max_size is 1500" in caplog.text
        (key,) = redis.keys("redislock:{idempotency:*}:record")
        assert redis.strlen(key) < 200

    @every_client
    @pytest.mark.parametrize(
        "written",
        [
            b"",
            b"\xff",
            b"garbage",
            b"null",
            b"{}",
            b'{"fingerprint": 1}',
            b"[" * 100_000,
            b'{"fingerprint": "", "status": "x", "reason": "", "headers": []}',
            b'{"fingerprint": "", "status": 200, "reason": "", "headers": [["a\\n", "b"]]}',
            None,
        ],
        ids=lambda written: repr(written)[:40],
    )
    def test_a_broken_record(
        self, ask: Ask, written: bytes | None, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The view has run, since there is a record. So it is not run again, and the log says
        which key an operator may delete."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            post(ask)
            (key,) = redis.keys("redislock:{idempotency:*}:record")
            redis.delete(key)
            redis.rpush(key, "a list") if written is None else redis.set(key, written)
            answers = [post(ask), post(ask)]
            redis.delete(key)
            assert post(ask).content == b"run 2"
        assert [answer.status_code for answer in answers] == [409, 409]
        assert "its answer can’t be read any more" in json.loads(answers[0].content)["detail"]
        assert f"at the key {key.decode()!r} can't be read" in caplog.text

    @every_client
    def test_what_django_takes_in_place_of_plain_values(self, ask: Ask) -> None:
        """A set in a policy and a lazily translated reason are kept."""
        marked: list[HttpResponse] = []

        reason: Any = gettext_lazy("Conflict")
        if django.VERSION >= (6, 1):  # which refuses a lazy one itself
            reason = "Conflict"

        idempotent = idempotent_view()(Counter(with_policy({"b", "a"}), reason=reason))

        def middleware(request: HttpRequest, pk: int) -> HttpResponse:
            marked.append(idempotent(request, pk))
            return marked[-1]

        with at_root(middleware):
            first, second = post(ask), post(ask)
        assert second.headers["Idempotent-Replayed"]
        assert first.reason_phrase == second.reason_phrase == "Conflict"
        assert vars(marked[1])["_csp_config"] == {"img-src": ["a", "b"]}


class TestPayload:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (
                {"data": {"a": 1}, "content_type": "application/json"},
                {"data": {"a": 2}, "content_type": "application/json"},
            ),
            (
                {"data": b"1", "content_type": "multipart/form-data2"},
                {"data": b"2", "content_type": "multipart/form-data2"},
            ),
            ({"where": "/7/"}, {"where": "/8/"}),
            ({"where": "/7/"}, {"where": "/7/?x=1"}),
        ],
        ids=["JSON", "a type that nobody parses", "path", "query"],
    )
    def test_what_belongs_to_it(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        """The bytes of JSON and the address count: a key for one order is not valid for
        another."""
        with at_root(forms.function(idempotent_view(), Counter())):
            answers = [post(**request).status_code for request in (one, one, other)]
        assert answers == [201, 201, 422]

    def test_a_form(self) -> None:
        """A form counts by its fields, not by its boundary, which changes with each request."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            for border in ("one", "another"):
                content = encode_multipart(border, {"a": "1", "b": ["2", "3"]})
                kind = f"multipart/form-data; boundary={border}"
                assert post(data=content, content_type=kind).status_code == 201
        assert body.runs == 1

    def patch(self, border: str, amount: str) -> Any:
        scan = SimpleUploadedFile("scan", b"content")
        return wsgi(
            "patch",
            data=encode_multipart(border, {"amount": amount, "scan": scan}),
            content_type=f"multipart/form-data; boundary={border}",
            headers={"idempotency-key": "1", "authorization": "Bearer 1"},
        )

    def test_a_form_by_patch(self) -> None:
        """Django REST framework parses it, so its fields are compared."""
        with at_root(forms.api_patch(idempotent_view(), Counter())):
            answers = [self.patch(*sent) for sent in (("one", "1"), ("two", "1"), ("one", "2"))]
        assert [answer.status_code for answer in answers] == [201, 201, 422]

    def test_a_form_that_nobody_parses(self) -> None:
        """The client makes the boundary, and so could let two payloads look like one."""
        body = Counter()
        with at_root(forms.function(idempotent_view(), body)):
            answer = self.patch("one", "1")
        assert (answer.status_code, body.runs) == (415, 0)
        assert json.loads(answer.content)["title"] == "Unsupported media type"
        assert "takes a multipart form by POST only" in json.loads(answer.content)["detail"]

    def test_read_before(self) -> None:
        """If a permission has read the data before, the parsed data counts."""

        class Looks(BasePermission):
            def has_permission(self, request: Any, view: Any) -> bool:
                return "name" in request.data or "file" in request.data

        @idempotent_view()
        class Page(APIView):
            parser_classes = (FileUploadParser,)
            permission_classes = (Looks,)

            def post(self, request: Any, pk: int) -> HttpResponse:
                return HttpResponse(request.data["file"].read(), status=201)

        def answer(content: bytes) -> int:
            name = {"content-disposition": "attachment; filename=scan"}
            kind = "application/octet-stream"
            return int(post(data=content, content_type=kind, headers=name).status_code)

        with at_root(Page.as_view()):
            assert [answer(content) for content in (b"one", b"one", b"two")] == [201, 201, 422]

    def test_files(self) -> None:
        """Files count by their content, and the view can still read them."""
        seen = []

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            seen.append(request.FILES["scan"].read())
            return HttpResponse(status=201)

        with at_root(forms.function(idempotent_view(), body)):
            answers = [
                post(data={"scan": SimpleUploadedFile("scan", content)}).status_code
                for content in (b"one", b"one", b"two")
            ]
        assert answers == [201, 201, 422]
        assert seen == [b"one"]

    def test_rest_framework_still_parses_it(self) -> None:
        """The framework parses the body, whether we have read it before or not."""
        seen = []

        def body(request: Any, pk: int) -> Response:
            seen.append(dict(request.data))
            return Response({"done": True}, status=201)

        with at_root(forms.api_class(idempotent_view(), body)):
            json_data = {"data": {"a": 1}, "content_type": "application/json"}
            first, second = post(key="1", **json_data), post(key="1", **json_data)
            post(key="2", data={"a": "1"})
        assert seen == [{"a": 1}, {"a": ["1"]}]
        assert first.content == second.content == b'{"done":true}'
        assert second.headers["Content-Type"] == "application/json"


class TestWhatIsKept:
    @pytest.mark.parametrize("status", [200, 201, 204, 302, 400, 404, 409])
    def test_an_answer(self, status: int) -> None:
        """Success, redirects and most errors of the client are kept."""
        body = Counter(status=status)
        with at_root(forms.function(idempotent_view(), body)):
            assert [post().status_code, post().status_code] == [status, status]
        assert body.runs == 1

    def test_a_redirect(self) -> None:
        """A replay has the `url` of a redirect, which test clients and middlewares read."""
        first, second = self.replayed(lambda request, pk: redirect("/orders/7/"))
        assert second.status_code == first.status_code == 302
        assert second.url == first.url == "/orders/7/"

    @pytest.mark.parametrize("status", [401, 403, 407, 408, 425, 429, 500, 502, 503])
    def test_what_may_be_better_the_next_time(self, status: int) -> None:
        """Server errors are not kept, nor are responses that ask the client to retry, or refuse
        it."""
        body = Counter(status=status)
        with at_root(forms.function(idempotent_view(), body)):
            post(raises=False)
            post(raises=False)
        assert body.runs == 2

    @pytest.mark.parametrize(
        ("status", "options"),
        [(409, {}), (423, {"response": lambda request, error: HttpResponse(status=423)})],
        ids=["ours", "the project's"],
    )
    def test_a_busy_lock_inside(self, status: int, options: dict[str, Any]) -> None:
        """The response to a busy lock asks the client to retry, so it is not kept."""
        body = Counter()
        inner = lock_view("o", wait=0, **options)
        with at_root(forms.function(lambda f: idempotent_view()(inner(f)), body)):
            with held_elsewhere("o"):
                assert post().status_code == status
            assert post().status_code == 201
        assert body.runs == 1

    def replayed(self, view: Any) -> tuple[Any, Any]:
        """The first response of a view, and the second."""
        with at_root(idempotent_view()(view)):
            first, second = post(), post()
        assert second.headers["Idempotent-Replayed"]
        return first, second

    def test_what_middlewares_look_at(self, settings: Any) -> None:
        """A page that may be framed may be framed again."""
        settings.MIDDLEWARE = ["django.middleware.clickjacking.XFrameOptionsMiddleware"]
        for response in self.replayed(xframe_options_exempt(Counter())):
            assert "X-Frame-Options" not in response.headers

    def test_cookies(self) -> None:
        """Cookies are replayed with all their attributes."""

        def bake(response: HttpResponse) -> HttpResponse:
            response.set_cookie("cart", 'a "b"; c', max_age=60, httponly=True, samesite="Lax")
            response.set_cookie("seen", "1", path="/7/")
            return response

        first, second = self.replayed(Counter(bake))
        assert first.cookies.output() == second.cookies.output()
        assert second.cookies["cart"].value == 'a "b"; c'

    def test_no_content_type(self) -> None:
        """A response without a Content-Type is replayed without one."""

        def bare(response: HttpResponse) -> HttpResponse:
            del response["Content-Type"]
            return response

        for response in self.replayed(Counter(bare)):
            assert "Content-Type" not in response.headers

    def test_bytes(self) -> None:
        """Any content and any reason phrase are replayed."""
        content = bytes(range(256))
        change = lambda _: HttpResponse(content, reason="Fine")  # noqa: E731
        for response in self.replayed(Counter(change)):
            assert (response.content, response.reason_phrase) == (content, "Fine")

    @every_client
    def test_a_template_response(self, ask: Ask, settings: Any, redis: Redis) -> None:
        """It is kept once it is rendered, after the view; the lock is held until then."""
        template = _template("{{ held }}, {{ run }}")
        body = Counter()

        def view(request: HttpRequest, pk: int) -> TemplateResponse:
            run = body(request, pk).content.decode()
            held = lambda: bool(redis.keys("redislock:{idempotency:*}"))  # noqa: E731
            return TemplateResponse(request, template, {"run": run, "held": held})

        with at_root(forms.function(idempotent_view(), view)):
            first, second = post(ask), post(ask)
        assert first.content == second.content == b"True, run 1"
        assert body.runs == 1
        assert not redis.keys("redislock:{idempotency:*}")

    @pytest.mark.parametrize("kind", ["template", "rest framework"])
    def test_rendered_in_the_view(self, redis: Redis, kind: str) -> None:
        """It is kept even if nobody renders it because the client has gone away."""

        def view(request: Any, pk: int) -> Any:
            if kind == "template":
                return TemplateResponse(request, _template("done"), {})
            return Response("done")

        form = forms.function if kind == "template" else forms.api_method
        request = RequestFactory().post("/", headers={"idempotency-key": "1"})
        form(idempotent_view(scope=lambda request: ""), view)(request, pk=7)
        assert redis.keys("redislock:{idempotency:*}:record")
        assert not redis.keys("redislock:{idempotency:*}")

    def test_a_template_that_fails(self, redis: Redis) -> None:
        """Nothing is kept, and the lock is free again."""
        body = Counter()

        def view(request: HttpRequest, pk: int) -> TemplateResponse:
            body(request, pk)
            return TemplateResponse(request, _template("{% include nothing %}"), {})

        with at_root(forms.function(idempotent_view(), view)):
            for _ in range(2):
                post(raises=False)
                assert not redis.keys("redislock:{idempotency:*}")
        assert body.runs == 2


def _template(source: str) -> Any:
    from django.template import Engine
    from django.template.backends.django import DjangoTemplates, Template

    params = {"NAME": "t", "DIRS": [], "APP_DIRS": False, "OPTIONS": {}}
    return Template(Engine().from_string(source), DjangoTemplates(params))


@on_sqlite
class TestTransactions:
    @pytest.fixture(autouse=True)
    def _atomic_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    @pytest.mark.parametrize("form", [forms.function, forms.api_class])
    def test_kept_after_the_commit(self, form: Form, redis: Redis) -> None:
        """The response is kept after the commit, when the lock is released: the view's own
        on_commit functions run under the lock."""
        seen = []

        def look() -> None:
            seen.append(sorted(k.rpartition(b"}")[2] for k in redis.keys("redislock:{idem*")))

        def body(request: HttpRequest, pk: int) -> HttpResponse:
            Shop.objects.create(name="once")
            transaction.on_commit(look)
            return HttpResponse("done")

        with at_root(form(idempotent_view(), body)):
            assert [post().content, post().content] == [b"done", b"done"]
        assert Shop.objects.count() == 1
        assert seen == [[b""]]

    def test_a_moment_after_a_rollback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The response may be sent before the watchdog has released the lock. A second request
        then receives 409, and a later one is carried out."""
        body, asked_again = Counter(), threading.Event()
        release = Watchdog._release_pending

        def later(watchdog: Watchdog) -> None:
            assert asked_again.wait(PATIENCE)
            release(watchdog)

        def rolled_back(request: HttpRequest, pk: int) -> HttpResponse:
            transaction.set_rollback(body.runs == 0)
            return body(request, pk)

        def disconnect() -> None:
            connections["default"].connection.close()  # Django closes none that is in memory

        monkeypatch.setattr(Watchdog, "_release_pending", later)
        with at_root(forms.function(idempotent_view(), rolled_back)):
            assert post().content == b"run 1"
            with ThreadPoolExecutor(1) as another:
                busy = another.submit(post).result(PATIENCE)
                assert (busy.status_code, busy.headers["Retry-After"]) == (409, "1")
                asked_again.set()
                again = eventually(
                    lambda: (r := another.submit(post).result()).status_code == 201 and r
                )
                another.submit(disconnect).result(PATIENCE)
        assert again.content == b"run 2"


class TestRedisAway:
    @some_forms
    @every_client
    def test_before(self, form: Form, ask: Ask, settings: Any) -> None:
        """No view runs whose response could not be recorded."""
        cache = settings.CACHES["default"]
        settings.CACHES = {"default": {**cache, "LOCATION": "unix:///nowhere/redis.sock"}}
        body = Counter()
        with at_root(form(idempotent_view(), body)):
            response = post(ask)
        assert (response.status_code, body.runs) == (503, 0)
        assert response.headers["Retry-After"] == "5"


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"ttl": 0}, ValueError, r"ttl must be between"),
            ({"ttl": "day"}, TypeError, r"ttl must be a number of seconds"),
            ({"required": 1}, TypeError, r"required must be True or False, not 1"),
            ({"methods": "POST"}, TypeError, r"methods must be a list"),
            ({"scope": "user"}, TypeError, r"scope must be a function of the request"),
            ({"max_size": 0}, ValueError, r"max_size must be between 1 and 536870912 bytes"),
            ({"max_size": "1 MB"}, TypeError, r"max_size must be a number of bytes, such as"),
        ],
    )
    def test_arguments(self, arguments: Any, error: type[Exception], match: str) -> None:
        """The error names the argument and says what to write."""
        with pytest.raises(error, match=match):
            idempotent_view(**arguments)

    def test_without_parentheses(self) -> None:
        """The error says what to write."""
        with pytest.raises(TypeError, match="needs its parentheses"):
            idempotent_view(lambda request: HttpResponse())  # type: ignore[arg-type]


def test_settings_of_its_locks(settings: Any) -> None:
    """LOCKS applies to these locks, except that nobody waits for one."""
    settings.REDISLOCK = {"LOCKS": {"idempotency:*": {"TTL": 5, "WAIT": 30}}}
    leases = []

    def body(request: HttpRequest, pk: int) -> HttpResponse:
        leases.append(current_lease())
        with ThreadPoolExecutor(1) as another:
            assert another.submit(post).result(PATIENCE).status_code == 409
        return HttpResponse()

    with at_root(forms.function(idempotent_view(), body)):
        post()
    assert leases[0].ttl == 5
    assert redis_lock(leases[0].name).holder() is None
