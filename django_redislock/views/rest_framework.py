"""Refusals as exceptions of Django REST framework, so that its own handler answers them.

Imported only where such a request has come.
"""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import APIException

from .responses import Problem


class Refusal(APIException):  # type: ignore[misc]
    """A view that did not run. Its `__cause__` says why, where that is an exception."""

    def __init__(self, request: Any, what: Problem, again: int | None) -> None:
        super().__init__(what.detail, what.code)
        self.status_code = what.status
        if again is not None:
            self.wait = again
            """Seconds; the handler makes it Retry-After."""
        view = request.parser_context.get("view")
        if view is not None:
            view.headers["Cache-Control"] = "no-store"  # whoever answers
