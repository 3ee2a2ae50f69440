"""Refusals as exceptions of Django REST framework, so that its own handler answers them.

Imported only where such a request has come.
"""

from __future__ import annotations

from typing import Any

from django.utils.functional import Promise
from rest_framework.exceptions import APIException

CODES = {400: "invalid", 409: "conflict", 422: "payload_mismatch", 503: "unavailable"}


class Refusal(APIException):  # type: ignore[misc]
    """A view that did not run. Its `__cause__` says why, where that is an exception."""

    def __init__(
        self, request: Any, status: int, detail: str | Promise, again: int | None
    ) -> None:
        super().__init__(detail, CODES.get(status, "conflict"))
        self.status_code = status
        if again is not None:
            self.wait = again
            """Seconds; the handler makes it Retry-After."""
        view = request.parser_context.get("view")
        if view is not None:
            view.headers["Cache-Control"] = "no-store"  # whoever answers
