"""The reasons why a view did not run, and the responses that say so: problem details, a page or
plain text.

The client's `Accept` header chooses between them.
"""

from __future__ import annotations

import json
import logging
import math
from http import HTTPStatus
from importlib.resources import files
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import Context, Engine, TemplateDoesNotExist, loader
from django.utils.functional import Promise
from django.utils.translation import get_language, get_language_bidi
from django.utils.translation import gettext_lazy as _

from ..base.exceptions import LockNotAcquired, LockUnavailable
from ..settings import conf
from .decorator import Call, is_of_rest_framework

# The reasons: their codes, statuses and texts for clients.
#
# No text names the holder of the lock: owner and label name hosts and code, which clients must not
# see. The log has both.


class Problem(NamedTuple):
    """Why a view did not run, for clients."""

    code: str
    """For programs: a member of problem details, and the code of an `APIException`."""
    status: int
    detail: str | Promise


BUSY = Problem(
    "conflict", 409, _("This is being worked on already. Please try again in a moment.")
)
UNAVAILABLE = Problem(
    "unavailable", 503, _("This is not possible at the moment. Please try again soon.")
)

# For requests with an Idempotency-Key.
KEY_MISSING = Problem("key_missing", 400, _("This request needs an Idempotency-Key header."))
KEY_MALFORMED = Problem(
    "key_malformed", 400, _("The Idempotency-Key header must be one text of up to 255 characters.")
)
FORM_UNPARSED = Problem(
    "form_unparsed",
    415,
    _("With an Idempotency-Key, this address takes a multipart form by POST only."),
)
KEY_OF_NOBODY = Problem(
    "key_of_nobody",
    403,
    _(
        "An Idempotency-Key belongs to its sender, and this request does not say who that is: it "
        "has no user, no session and no Authorization header."
    ),
)
KEY_IN_USE = Problem(
    "key_in_use", 409, _("A request with this Idempotency-Key is being worked on already.")
)
ANSWER_NOT_KEPT = Problem(
    "answer_not_kept",
    409,
    _(
        "The request with this Idempotency-Key was carried out, and answered with the status "
        "%(status)s. That answer was not kept. The request is not carried out again."
    ),
)
ANSWER_UNREADABLE = ANSWER_NOT_KEPT._replace(
    detail=_(
        "The request with this Idempotency-Key was carried out, and its answer can’t be read any "
        "more. The request is not carried out again."
    )
)
PAYLOAD_MISMATCH = Problem(
    "payload_mismatch", 422, _("This Idempotency-Key was used for another request.")
)


# The responses.


logger = logging.getLogger("django_redislock")

NoLock = LockNotAcquired | LockUnavailable
"""Why a view has no lock."""

TEMPLATE = "django_redislock/problem.html"

MAX_HINT = 30
"""The longest `Retry-After`, in seconds, however long the last holder held the lock."""
UNAVAILABLE_HINT = 5
"""`Retry-After` in seconds if Redis is unreachable."""

# Clients that accept anything, such as fetch() and curl, get the first one. Browsers say that they
# prefer HTML.
_PROBLEM, _JSON, _HTML, _TEXT = (
    "application/problem+json",
    "application/json",
    "text/html",
    "text/plain",
)

_TITLES = {
    HTTPStatus.BAD_REQUEST: _("Bad request"),
    HTTPStatus.FORBIDDEN: _("Forbidden"),
    HTTPStatus.CONFLICT: _("Conflict"),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: _("Unsupported media type"),
    HTTPStatus.UNPROCESSABLE_ENTITY: _("Unprocessable content"),
    HTTPStatus.LOCKED: _("Locked"),
    HTTPStatus.TOO_MANY_REQUESTS: _("Too many requests"),
    HTTPStatus.SERVICE_UNAVAILABLE: _("Service unavailable"),
}


def retry_after(error: NoLock) -> int:
    """Return the seconds after which the client should try again.

    That is when the lock will be free if its holder takes as long as the last one. The remaining
    time of the lease would mislead: a lease is renewed, so it only says when a crash is over.
    """
    if isinstance(error, LockUnavailable):
        return UNAVAILABLE_HINT
    if error.lasted is None:
        return 1
    left = error.lasted - (error.holder.held or 0)
    return max(1, min(math.ceil(left), MAX_HINT))


def title(status: int) -> str | Promise:
    """Return the title of a status."""
    try:
        known = HTTPStatus(status)
        return _TITLES.get(known, known.phrase)
    except ValueError:
        return f"{status}"


def problem(
    request: Any, what: Problem, *, again: int | None = None, cause: Exception | None = None
) -> HttpResponse:
    """Return the response in the form that the client prefers. `again` becomes `Retry-After`.

    For a request of Django REST framework, raise an exception: its own handler answers.
    """
    if is_of_rest_framework(request):
        raise _exception(request, what, again) from cause
    status, detail = what.status, what.detail
    kind = request.get_preferred_type([_PROBLEM, _JSON, _HTML, _TEXT]) or _TEXT
    if kind in (_PROBLEM, _JSON):
        uri = conf.policy("", {}).view_problem_type.replace("{code}", what.code)  # as in RFC 9457
        members = {"type": uri, "title": str(title(status)), "status": status}
        content = json.dumps({**members, "detail": str(detail), "code": what.code})
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


def _exception(request: Any, what: Problem, again: int | None) -> Exception:
    """Return the problem for the exception handler of Django REST framework."""
    from rest_framework.exceptions import APIException  # only where the framework is in use

    refusal = APIException(what.detail, what.code)
    refusal.status_code = what.status
    if again is not None:
        refusal.wait = again  # the handler writes it as Retry-After
    view = request.parser_context.get("view")
    if view is not None:
        # Set here, since the project may have its own exception handler.
        view.headers["Cache-Control"] = "no-store"
    return refusal  # type: ignore[no-any-return]


def without_lock(call: Call, error: NoLock, busy: Problem) -> HttpResponse:
    """Return the response of a view that did not get its lock: `busy`, or 503."""
    if isinstance(error, LockUnavailable):
        logger.error("%s was not run: %s", call.label, error)
        busy = UNAVAILABLE
    return problem(call.request, busy, again=retry_after(error), cause=error)


def with_hints(response: Any, error: NoLock) -> HttpResponseBase:
    """Add `no-store` and `Retry-After` to a response that the project may have made."""
    if not isinstance(response, HttpResponseBase):
        # Django has the same check, but would name the view, which was not run.
        raise ValueError(
            f"the function that response= or VIEW_RESPONSE names for views without their lock "
            f"returned no HttpResponse, but {response!r}"
        )
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
        # No template engine of the project looks into our app, or one of its context processors
        # needs the server that is unreachable.
        if not isinstance(error, TemplateDoesNotExist):
            logger.exception("%s could not be rendered", TEMPLATE)
        # Read as a resource, since the package may be in a zip.
        ours = files("django_redislock").joinpath("templates", TEMPLATE)
        page = Engine().from_string(ours.read_text(encoding="utf-8"))
        return str(page.render(Context(context)))
