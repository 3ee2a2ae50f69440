"""What operators did to locks and jobs, as entries of the admin's history.

An entry is written after the deed, which nobody can take back. So an entry that can't be written,
for whatever reason, is logged and shown, and fails no request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.db import router, transaction
from django.utils.translation import gettext_lazy as _

from ..inspection.words import clean

logger = logging.getLogger("django_redislock")

UNWRITTEN = _("This is missing from the history, which could not be written. See the log.")


class Deed(NamedTuple):
    """What was done to one lock or job."""

    id: str
    name: str
    message: str


def history(model: Any, id: str | None = None) -> Any:
    """Return the entries of a row, or of all rows, the newest first."""
    entries = LogEntry.objects.filter(content_type_id=get_content_type_for_model(model).pk)
    if id is not None:
        entries = entries.filter(object_id=id)
    return entries.select_related("user").order_by("-action_time", "-pk")


def write_down(user: Any, model: Any, deeds: Sequence[Deed]) -> bool:
    """Write an entry for each deed. If that fails, log them and return False."""
    try:
        using = router.db_for_write(LogEntry)
        # Numbers, since routers may refuse a relation to a row that was read from a replica.
        content_type_id = get_content_type_for_model(model).pk
        # A savepoint: a failure here must not break the transaction of the request.
        with transaction.atomic(using=using):
            LogEntry.objects.db_manager(using).bulk_create(
                LogEntry(
                    user_id=user.pk,
                    content_type_id=content_type_id,
                    object_id=deed.id,
                    object_repr=clean(deed.name)[:200],
                    action_flag=CHANGE,
                    change_message=deed.message,
                )
                for deed in deeds
            )
    except Exception as error:  # of the database, a router, or a receiver of a signal
        who = clean(str(user.get_username()))
        for deed in deeds:
            text = "The history lacks what %s did to %r: %s (%s)"
            logger.exception(text, who, deed.id, clean(deed.message), error)
        return False
    return True
