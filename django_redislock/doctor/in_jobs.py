"""Findings about periodic jobs."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from django.core.exceptions import ImproperlyConfigured

from ..periodic.registry import discover, jobs
from ..settings.configured import job_entries
from .finding import Finding
from .in_settings import problems
from .lines import joined, redislock


def job_findings() -> Iterator[Finding]:
    """Return what keeps jobs from running. The module `periodic` of each app is imported."""
    if problems():
        return  # they have to be corrected first
    try:
        discover()
        names = [job.name for job in jobs()]
    except (TypeError, ValueError, ImproperlyConfigured) as error:
        if not str(error).startswith(("The periodic job ", "REDISLOCK")):
            raise  # an error of the module itself
        yield Finding(
            id="redislock.E003", message=str(error), hint="Correct it where the message says."
        )
        return
    for entry in job_entries():
        if not any(fnmatchcase(name, entry) for name in names):
            yield Finding(
                id="redislock.W006",
                message=f"REDISLOCK['JOBS'][{entry!r}] applies to no periodic job.",
                hint=joined(
                    [f"del {redislock('JOBS', entry)}"],
                    "or correct it: manage.py runperiodic --list shows the names",
                ),
            )
