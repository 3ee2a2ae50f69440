"""Answers of a view that did not run: problem details, a page or plain text, as the client likes.

None of them says who holds the lock: owner and label name hosts and code, which are not for
strangers. Those are in the log.
"""

from __future__ import annotations

import json
import logging
import math
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import Context, Engine, TemplateDoesNotExist, loader
from django.utils.functional import Promise
from django.utils.translation import get_language, get_language_bidi
from django.utils.translation import gettext_lazy as _

from ..base.exceptions import LockNotAcquired, LockUnavailable
from .decorator import Call, is_of_rest_framework

logger = logging.getLogger("django_redislock")

NoLock = LockNotAcquired | LockUnavailable
"""Why a view has no lock."""

TEMPLATE = "django_redislock/problem.html"
_TEMPLATES = str(Path(__file__).parent.parent / "templates")

MAX_HINT = 30
"""Seconds: no client is sent away for longer, however long the lock was held the last time."""
UNAVAILABLE_HINT = 5
"""Seconds after which to ask again when Redis was away."""

# The first is what a client gets that takes anything, as fetch() and curl do. Browsers say that
# they prefer HTML.
_PROBLEM, _JSON, _HTML, _TEXT = (
    "application/problem+json",
    "application/json",
    "text/html",
    "text/plain",
)

TYPES = "https://github.com/django-redislock/django-redislock/blob/main/docs/views.md"
"""The page that explains the types of problems."""


class Problem(NamedTuple):
    """Why a view did not run, for clients."""

    code: str
    """For programs: the end of the type, and the code of an `APIException`."""
    status: int
    detail: str | Promise

    @property
    def type(self) -> str:
        """The URI that names it, as in RFC 9457."""
        return f"{TYPES}#{self.code}"


BUSY = Problem(
    "conflict", 409, _("This is being worked on already. Please try again in a moment.")
)
UNAVAILABLE = Problem(
    "unavailable", 503, _("This is not possible at the moment. Please try again soon.")
)

_TITLES = {
    HTTPStatus.BAD_REQUEST: _("Bad request"),
    HTTPStatus.FORBIDDEN: _("Forbidden"),
    HTTPStatus.CONFLICT: _("Conflict"),
    HTTPStatus.UNPROCESSABLE_ENTITY: _("Unprocessable content"),
    HTTPStatus.LOCKED: _("Locked"),
    HTTPStatus.TOO_MANY_REQUESTS: _("Too many requests"),
    HTTPStatus.SERVICE_UNAVAILABLE: _("Service unavailable"),
}


def retry_after(error: NoLock) -> int:
    """Seconds after which to ask again: when the lock will be free, if its holder takes as long
    as the last one did.

    Not what remains of the lease: that is renewed, and says only when a crash would be over.
    """
    if isinstance(error, LockUnavailable):
        return UNAVAILABLE_HINT
    if error.lasted is None:
        return 1
    left = error.lasted - (error.holder.held or 0)
    return max(1, min(math.ceil(left), MAX_HINT))


def title(status: int) -> str | Promise:
    """What a status is called."""
    known = _TITLES.get(status)  # type: ignore[call-overload]
    if known is not None:
        return known  # type: ignore[no-any-return]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"{status}"


def problem(
    request: Any,
    what: Problem,
    *,
    again: int | None = None,
    cause: Exception | None = None,
) -> HttpResponse:
    """The answer, in the form that the client likes best. `again`: seconds to wait before.

    To a request of Django REST framework that one's own handler answers: an exception is raised.
    """
    if is_of_rest_framework(request):
        from .rest_framework import Refusal  # there only if that one is

        raise Refusal(request, what, again) from cause
    status, detail = what.status, what.detail
    kind = request.get_preferred_type([_PROBLEM, _JSON, _HTML, _TEXT]) or _TEXT
    if kind in (_PROBLEM, _JSON):
        members = {"type": what.type, "title": str(title(status)), "status": status}
        content = json.dumps({**members, "detail": str(detail)})
    elif kind == _HTML:
        content = _page(request, status, detail)
    else:
        content = f"{title(status)}\n\n{detail}\n"
    charset = "; charset=utf-8" if kind in (_HTML, _TEXT) else ""
    response = HttpResponse(content, status=status, content_type=kind + charset)
    response["Cache-Control"] = "no-store"
    if again is not None:
        response["Retry-After"] = str(again)
    return response


def without_lock(call: Call, error: NoLock, busy: Problem) -> HttpResponse:
    """The answer of a view without its lock: `busy` when somebody else has it."""
    if isinstance(error, LockUnavailable):
        logger.error("%s was not run: %s", call.label, error)
        busy = UNAVAILABLE
    return problem(call.request, busy, again=retry_after(error), cause=error)


def with_hints(response: Any, error: NoLock) -> Any:
    """An answer that the project has made: nobody may keep it, and it says when to come again."""
    if isinstance(response, HttpResponseBase):
        response.setdefault("Cache-Control", "no-store")
        response.setdefault("Retry-After", str(retry_after(error)))
    return response


def _page(request: HttpRequest, status: int, detail: str | Promise) -> str:
    context = {
        "title": title(status),
        "detail": detail,
        "language": get_language() or "en",
        "direction": "rtl" if get_language_bidi() else "ltr",
    }
    try:
        return loader.render_to_string(TEMPLATE, context, request)
    except Exception as error:
        # The project has no engine that looks into our app; or a context processor of its own
        # can't do without what is away.
        if not isinstance(error, TemplateDoesNotExist):
            logger.exception("%s could not be rendered", TEMPLATE)
        engine = Engine(dirs=[_TEMPLATES])
        return str(engine.get_template(TEMPLATE).render(Context(context)))
