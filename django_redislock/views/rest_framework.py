"""Problems as exceptions of Django REST framework, so that its own handler answers them.

Imported only after the framework has made a request.
"""

from __future__ import annotations

from typing import Any

from django.utils.functional import Promise
from rest_framework.exceptions import APIException


class Refusal(APIException):  # type: ignore[misc]
    """A view did not run. `__cause__` is the lock's error, if there is one."""

    def __init__(
        self, request: Any, again: int | None, code: str, status: int, detail: str | Promise
    ) -> None:
        super().__init__(detail, code)
        self.status_code = status
        if again is not None:
            self.wait = again
            """Seconds; the handler writes them as Retry-After."""
        view = request.parser_context.get("view")
        if view is not None:
            # Set here, since the project may have its own exception handler.
            view.headers["Cache-Control"] = "no-store"
