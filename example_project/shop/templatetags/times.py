"""Times as all parts of the tour show them: how long, never at what o'clock."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone

register = template.Library()
NBSP = "\N{NO-BREAK SPACE}"


@register.filter
def duration(seconds: float) -> str:
    """Return `7.2 s` or `3 min 12 s`, which no line break cuts."""
    if seconds < 59.95:
        return f"{seconds:.1f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}{NBSP}min{NBSP}{rest}{NBSP}s"


@register.filter
def ago(instant: datetime) -> str:
    return f"{duration(max(0.0, (timezone.now() - instant).total_seconds()))} ago"
