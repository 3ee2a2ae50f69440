"""A shop that dies at its COMMIT, for test_commit.py."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from tests.models import Shop
from tests.worker import say


def prepare() -> None:
    """Make the tables."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    say("ready")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(when: str) -> None:
    """Die at the next COMMIT: before it, after it, or never."""
    commit = connection.commit

    def then() -> None:
        if when == "before":
            die()
        commit()
        if when == "after":
            die()

    connection.commit = then  # type: ignore[method-assign]


def pay(store: Any, around: str, when: str) -> None:
    """Answer one request: say the status, the content, and the number of payments."""
    from django_redislock.views import idempotent_view

    connection.settings_dict["ATOMIC_REQUESTS"] = around == "request"

    @idempotent_view(store=store, scope=lambda _request: "")
    def view(_request: HttpRequest) -> HttpResponse:
        with transaction.atomic():
            number = Shop.objects.count() + 1
            Shop.objects.create(name=f"payment {number}")
        return HttpResponse(f"payment {number}")

    request = RequestFactory().post("/", {"amount": 1}, headers={"idempotency-key": "1"})
    connection.ensure_connection()
    dying(when)
    with transaction.atomic() if around == "request" else nullcontext():
        response = view(request)
    say(response.status_code, response.content.decode(), "of", Shop.objects.count())


def charge(dies: str) -> None:
    """Charge in a step: die in it if told so. Say what the step found, and the orders."""
    from django_redislock.contrib.once import once_in_transaction, step

    @once_in_transaction("order:{number}")
    def order(number: int) -> None:
        Shop.objects.get_or_create(name=f"order {number}")
        with step("charged") as charged:
            if dies == "dies":
                die()
            say("begun" if charged.begun else "new", Shop.objects.count())

    order(1)
