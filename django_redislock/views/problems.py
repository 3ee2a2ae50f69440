"""The reasons why a view did not run: their codes, statuses and texts for clients.

No text names the holder of the lock: owner and label name hosts and code, which clients must not
see. The log has both.
"""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..settings import conf


class Problem(NamedTuple):
    """Why a view did not run, for clients."""

    code: str
    """For programs: a member of problem details, and the code of an `APIException`."""
    status: int
    detail: str | Promise

    @property
    def type(self) -> str:
        """The URI of this problem, as in RFC 9457."""
        return conf.policy("", {}).view_problem_type.replace("{code}", self.code)


BUSY = Problem(
    "conflict", 409, _("This is being worked on already. Please try again in a moment.")
)
UNAVAILABLE = Problem(
    "unavailable", 503, _("This is not possible at the moment. Please try again soon.")
)

# For requests with an Idempotency-Key.
KEY_MISSING = Problem("key_missing", 400, _("This request needs an Idempotency-Key header."))
KEY_MALFORMED = Problem(
    "key_malformed",
    400,
    _("The Idempotency-Key header must be one text of up to 255 characters."),
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
