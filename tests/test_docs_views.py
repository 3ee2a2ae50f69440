"""The examples of docs/views.md and docs/signals.md do what these pages say."""

from __future__ import annotations

import logging.config
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpResponse, JsonResponse
from django.test import RequestFactory
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_redislock import redis_lock, signals
from django_redislock.views import idempotent_view, lock_view, problems
from tests.blocks import blocks
from tests.test_decorators import held_elsewhere

DOCS = Path(__file__).parent.parent / "docs"


VIEWS, SIGNALS = blocks("views.md"), blocks("signals.md")


def run(text: str, **names: Any) -> dict[str, Any]:
    namespace = {
        "__name__": "docs",
        "View": View,
        "APIView": APIView,
        "api_view": api_view,
        "JsonResponse": JsonResponse,
        "lock_view": lock_view,
        "idempotent_view": idempotent_view,
        **names,
    }
    exec(compile(text, "docs", "exec"), namespace)
    return namespace


def post(**more: Any) -> Any:
    request = RequestFactory().post("/", **more)
    request.user = SimpleNamespace(pk=3, is_authenticated=True)
    return request


def test_one_at_a_time() -> None:
    """The lock is named by the user and the URL, and who waits for nothing gets 409."""
    text = VIEWS[0].replace("): ...", "): return HttpResponse(b'done')")
    example = run(text, HttpResponse=HttpResponse)
    with held_elsewhere("checkout:3"):
        assert example["checkout"](post()).status_code == 409
    assert example["checkout"](post()).status_code == 200
    assert example["Import"].as_view()(post(), source="bank").status_code == 200


def test_rest_framework() -> None:
    """Both spellings work."""
    text = VIEWS[1].replace("): ...", "): return HttpResponse(b'done')")
    example = run(text, HttpResponse=HttpResponse)
    request = APIRequestFactory().post("/")
    assert example["Checkout"].as_view()(request).status_code == 200
    assert example["checkout"](request).status_code == 200


def test_other_answers() -> None:
    """Another status, and a function."""

    def render(request: Any, template: str, context: Any, status: int) -> HttpResponse:
        return HttpResponse(f"{template} {context['error'].name}", status=status)

    text = VIEWS[2].replace('{pk}"', '{pk}", wait=0')
    example = run(text, render=render)
    with held_elsewhere("report:7"), held_elsewhere("export:7"):
        assert example["report"](post(), pk=7).status_code == 423
        assert example["export"](post(), pk=7).content == b"busy.html export:7"


def test_once() -> None:
    """The order is placed once."""
    placed: list[Any] = []

    def place(request: Any) -> int:
        placed.append(request)
        return len(placed)

    order = run(VIEWS[3], place=place)["order"]
    key = {"headers": {"idempotency-key": '"8e03978e-40d5-43e8-bc93-6894a57f9324"'}}
    assert order(post(**key)).content == order(post(**key)).content == b'{"order": 1}'


def test_whose_keys() -> None:
    """API keys are told apart, and a request without one is refused."""
    shipped: list[Any] = []

    def ship(request: Any) -> int:
        shipped.append(request)
        return len(shipped)

    deliver = run(VIEWS[4], ship=ship, csrf_exempt=csrf_exempt)["deliver"]

    def ask(**headers: str) -> Any:
        return deliver(RequestFactory().post("/", headers={"idempotency-key": "1", **headers}))

    assert [ask(x_api_key=key).content for key in "ABA"] == [
        b'{"delivery": 1}',
        b'{"delivery": 2}',
        b'{"delivery": 1}',
    ]
    assert ask().status_code == 403


def test_the_types_of_problems() -> None:
    """The page explains each, by its status."""
    page = (DOCS / "views.md").read_text(encoding="utf-8")
    known = [one for one in vars(problems).values() if isinstance(one, problems.Problem)]
    assert len(known) == 8
    for problem in known:
        assert f'| <a id="{problem.code}"></a>`{problem.code}` | {problem.status}' in page


def test_both() -> None:
    """In this order a busy lock is no answer to keep."""
    text = VIEWS[5].replace("): ...", "): return HttpResponse(b'sold')")
    buy = run(text.replace('{pk}"', '{pk}", wait=0'), HttpResponse=HttpResponse)["buy"]
    key = {"headers": {"idempotency-key": "1"}}
    with held_elsewhere("stock:7"):
        assert buy(post(**key), pk=7).status_code == 409
    assert buy(post(**key), pk=7).content == b"sold"
    assert buy(post(**key), pk=7).headers["Idempotent-Replayed"] == "true"
    assert buy(post(), pk=7).status_code == 400


def test_signals() -> None:
    """The receiver hears of what it was connected to."""
    counted: list[Any] = []
    metrics = SimpleNamespace(increment=lambda *args, **kwargs: counted.append((args, kwargs)))
    count = run(SIGNALS[0], metrics=metrics)["count"]
    try:
        with held_elsewhere():
            redis_lock("job").acquire(wait=0)
    finally:
        for signal in (signals.lock_lost, signals.lock_not_acquired):
            assert signal.disconnect(count)
    assert counted == [(("locks.not acquired",), {"tags": {"name": "job"}})]


def test_the_table_of_events() -> None:
    """Each field and each signal is in the page."""
    page = (DOCS / "signals.md").read_text(encoding="utf-8")
    for field in signals.LockEvent.__dataclass_fields__:
        assert f"`{field}`" in page
    for name in vars(signals):
        if name.startswith("lock_"):
            assert f"`{name}`" in page


def test_the_logging_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are ones that Python accepts."""
    config = run(SIGNALS[1])["LOGGING"]
    logging.config.DictConfigurator({**config, "incremental": False})
    assert set(config["loggers"]) == {"django_redislock"}
