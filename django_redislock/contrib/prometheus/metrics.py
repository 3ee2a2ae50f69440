"""The metrics, in the default registry of prometheus_client. docs/metrics.md lists them.

No label is a lock's name, since there may be millions: see held.py.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ...signals import LockEvent
from ...tasks import TaskEvent
from ..held import HeldLeases, pattern

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError as missing:
    raise ImproperlyConfigured(
        "'django_redislock.contrib.prometheus' is in INSTALLED_APPS and needs prometheus-client: "
        "python -m pip install 'django-redislock[prometheus]'"
    ) from missing

LABELS = ("lock", "using")

WAITS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HOLDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The defaults of WAIT and TTL, 10 and 30 seconds, are among these bounds."""

ATTEMPTS = Counter(
    "redislock_attempts_total",
    "Attempts to acquire a lock that were answered.",
    (*LABELS, "outcome"),
)
WAIT = Histogram(
    "redislock_wait_seconds",
    "How long locks were waited for, acquired or not.",
    (*LABELS, "outcome"),
    buckets=WAITS,
)
HOLD = Histogram(
    "redislock_hold_seconds",
    "How long locks were held, until they were released or known to be lost.",
    LABELS,
    buckets=HOLDS,
)
HANDOVERS = Counter(
    "redislock_handovers_total",
    "Locks that were acquired after a wait, by how the waiter learned it.",
    (*LABELS, "wakeup"),
)
UNKNOWN = Counter(
    "redislock_unknown_total",
    "Locks that became unknown, since a renewal got no answer.",
    LABELS,
)
UNLOCKED = Counter("redislock_unlocked_total", "Blocks that ran without their lock.", LABELS)
LOST = Counter("redislock_lost_total", "Locks that were lost while they were held.", LABELS)
ACTIVE = Gauge(
    "redislock_active",
    "Locks that are held right now, and renewed or watched.",
    LABELS,
    multiprocess_mode="livesum",  # a process that has ended holds nothing
)
TASKS = Counter(
    "redislock_task_events_total",
    "Events of tasks of unique and limited.",
    (*LABELS, "what"),
)

_active: HeldLeases[tuple[str, str]] = HeldLeases(lambda labels: ACTIVE.labels(*labels).dec())


def count(event: LockEvent) -> None:
    """Count an event, in a few dictionary look-ups."""
    labels = pattern(event.name), event.using
    if event.outcome == "unlocked":
        UNLOCKED.labels(*labels).inc()
    elif event.waited is not None:
        outcome = "acquired" if event.outcome == "acquired" else "conflict"
        ATTEMPTS.labels(*labels, outcome).inc()
        WAIT.labels(*labels, outcome).observe(event.waited)
    if event.outcome == "acquired":
        if event.wakeup:
            HANDOVERS.labels(*labels, event.wakeup).inc()
        for counter in (UNKNOWN, LOST, UNLOCKED):
            counter.labels(*labels)  # 0 before it is 1, or rate() would miss the first one
        if _active.begin(event, labels):
            ACTIVE.labels(*labels).inc()
    elif event.outcome == "unknown":
        UNKNOWN.labels(*labels).inc()
    elif event.outcome in ("released", "lost"):  # "cleared" comes again as "lost"
        if event.held is not None:
            HOLD.labels(*labels).observe(event.held)
        if event.outcome == "lost":
            LOST.labels(*labels).inc()
        # Use the labels of the begin: the settings may have changed since.
        began = _active.end(event)
        if began is not None:
            ACTIVE.labels(*began).dec()


def count_task(event: TaskEvent, **_more: Any) -> None:
    """Count an event of tasks."""
    TASKS.labels(pattern(event.name), event.using, event.what).inc()
