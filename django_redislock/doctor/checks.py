"""System checks. Those of the settings open no connection; those for deployment do.

What they know is imported when they run, since a process that serves does not run them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.core import checks

if TYPE_CHECKING:
    from . import Finding

TAG = "redislock"


def register() -> None:
    checks.register(check_settings, TAG)
    checks.register(check_jobs, TAG)
    checks.register(check_deployment, TAG, deploy=True)


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong in any case."""
    from .. import doctor as diagnosis

    return _messages(diagnosis.settings_findings())


def check_jobs(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong with periodic jobs."""
    from .. import doctor as diagnosis

    return _messages(diagnosis.job_findings())


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong for a project that others rely on; each server is asked."""
    from .. import doctor as diagnosis

    findings = list(diagnosis.settings_findings())
    if any(finding.level == diagnosis.Level.ERROR for finding in findings):
        return []  # check_settings says so, and before that is mended nobody knows whom to ask
    return _messages(
        chain.from_iterable(
            chain(diagnosis.advice(alias), diagnosis.server_findings(alias))
            for alias in diagnosis.aliases()
        )
    )


def _messages(findings: Iterable[Finding]) -> list[checks.CheckMessage]:
    from . import Level

    kinds = {Level.ERROR: checks.Error, Level.WARNING: checks.Warning}
    return [
        kinds[finding.level](
            finding.message,
            hint=finding.hint,
            obj=f"CACHES[{finding.alias!r}]" if finding.alias else "REDISLOCK",
            id=finding.id,
        )
        for finding in findings
        # What is only to know would be told by each check of a project where all is well.
        if finding.level in kinds
    ]
