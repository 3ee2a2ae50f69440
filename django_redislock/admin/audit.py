"""What operators did to periodic jobs, as entries of the admin's history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.db import DatabaseError, router, transaction

from ..inspection.words import clean
from ..models import PeriodicJob

logger = logging.getLogger("django_redislock")


def history(name: str) -> Any:
    """Return the entries of a job, the newest first."""
    entries = LogEntry.objects.filter(
        object_id=name, content_type=get_content_type_for_model(PeriodicJob)
    )
    return entries.select_related("user").order_by("-action_time")


def write_down(user: Any, did: Mapping[str, str]) -> bool:
    """Write an entry for each job: its name, and what was done. If the database fails, log that
    and return False."""
    try:
        # A savepoint: a failure here must not break the transaction of the request.
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            content_type = get_content_type_for_model(PeriodicJob)
            LogEntry.objects.bulk_create(
                LogEntry(
                    user_id=user.pk,
                    content_type=content_type,
                    object_id=name,
                    object_repr=clean(name)[:200],
                    action_flag=CHANGE,
                    change_message=message,
                )
                for name, message in did.items()
            )
    except DatabaseError as error:
        who = clean(str(user.get_username()))
        for name, message in did.items():
            text = "The history lacks what %s did to the job %r: %s (%s)"
            logger.error(text, who, name, clean(message), error)
        return False
    return True
