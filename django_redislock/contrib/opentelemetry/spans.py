"""A span per wait and per hold, made at the end, when the outcome is known.

The parent is the span in which the lock was acquired, also if the lease is released elsewhere or
lost in the background. docs/metrics.md lists the attributes.
"""

from __future__ import annotations

import re
import time

from django.core.exceptions import ImproperlyConfigured

from ...settings import conf
from ...signals import LockEvent
from ..held import OTHER, HeldLeases, pattern

try:
    from opentelemetry import context, trace
except ImportError as missing:
    raise ImproperlyConfigured(
        "'django_redislock.contrib.opentelemetry' is in INSTALLED_APPS and needs "
        "opentelemetry-api: python -m pip install 'django-redislock[opentelemetry]'"
    ) from missing

# The provider may be set later. Until then the spans record nothing.
_tracer = trace.get_tracer("django_redislock")

_CODE = re.compile(r"(?P<path>.+):(?P<line>\d+) in (?P<function>.+)")
"""The default label of a lease."""

_ERRORS: dict[str, str] = {"lost": "LeaseLost", "unlocked": "LockUnavailable"}

_parents: HeldLeases[context.Context] = HeldLeases(lambda _: None)


def record(event: LockEvent) -> None:
    """Make the spans that end with an event."""
    here = context.get_current()
    if event.waited is not None:
        _span("wait", event, event.waited, here)
    if event.outcome == "acquired":
        _parents.begin(event, here)
    elif event.outcome in ("released", "lost"):  # "cleared" comes again as "lost"
        parent = _parents.end(event)
        if event.held is not None:
            _span("hold", event, event.held, here if parent is None else parent)


def _span(what: str, event: LockEvent, seconds: float, parent: context.Context) -> None:
    end = time.time_ns()
    known = pattern(event.name)
    span = _tracer.start_span(
        # Few span names, so that spans can be grouped; the lock's name is an attribute.
        f"redislock {what}" if known == OTHER else f"redislock {what} {known}",
        parent,
        attributes=_attributes(event, known),
        start_time=end - int(seconds * 1e9),
    )
    if event.outcome in _ERRORS:
        span.set_status(trace.StatusCode.ERROR, event.why)
    span.end(end)


def _attributes(event: LockEvent, known: str) -> dict[str, str | int]:
    code = _CODE.fullmatch(event.label)
    holder = event.holder if event.holder and event.holder.owner is not None else None
    attributes: dict[str, str | int | None] = {
        "db.system.name": "redis",
        "redislock.pattern": known,
        "redislock.using": event.using,
        "redislock.outcome": event.outcome,
        "redislock.name": event.name if conf.listed(event.name).trace_names else None,
        "redislock.label": None if code else event.label,
        "code.file.path": code and code["path"],
        "code.line.number": code and int(code["line"]),
        "code.function.name": code and code["function"],
        "redislock.owner": event.owner,
        "redislock.fencing_token": event.fencing_token,
        "redislock.holder.owner": holder and holder.owner,
        "redislock.holder.label": holder and holder.label,
        "error.type": _ERRORS.get(event.outcome),
    }
    return {name: its for name, its in attributes.items() if its is not None}
