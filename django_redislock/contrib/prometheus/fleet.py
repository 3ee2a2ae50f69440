"""The locks and jobs of the whole fleet, as Redis has them, in Prometheus' text format.

`metrics.py` counts what its own process does; this reads what all processes hold and wait for. It
needs no entry in INSTALLED_APPS. docs/metrics.md lists the metrics.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ...base.background import start
from ...base.clock import now
from ...base.exceptions import LockError
from ...inspection import Inspector, Listing, LockInfo, State, inspectors
from ...inspection.inspector import servers
from ...inspection.tasks import Stage, TasksInfo, names
from ...periodic.job import jobs
from ...periodic.report import JobInfo, JobState, Ledger
from ...primitives.ledger import RunOutcome
from ...transport.server import server_of
from ..held import OTHER, pattern

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ImproperlyConfigured(
        "The metrics of the fleet need prometheus-client: "
        "python -m pip install 'django-redislock[prometheus]'"
    ) from missing

MOST_LOCKS = 10_000
"""Locks of one server that are read in full: those in trouble first, then those with waiters."""
MOST_LINES = 100
"""Locks of one server whose first waiter is asked for: those with most waiters. Each is a
request."""
PATIENCE = 5.0
"""Seconds that a scrape waits for the one before it."""

_LOCK = ("using", "lock")
_JOB = ("using", "periodic_job")


class Busy(Exception):
    """Redis is still being read for another scrape."""


class Fleet:
    """What is exported. Threads may share it: Redis is read for one scrape at a time."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._read_at = float("-inf")
        self._text = b""
        self._all_up = False

    def scrape(self) -> tuple[bytes, bool]:
        """Return the text, and whether all servers have answered.

        Scrapes that come while Redis is read share one answer. Raises `Busy` if that takes long,
        so that a slow Redis does not gather threads.
        """
        asked = time.monotonic()
        if not self._reading.acquire(timeout=PATIENCE):
            raise Busy(f"Redis is still being read for another scrape, after {PATIENCE:g} s.")
        try:
            if self._read_at < asked:
                snapshot = _Snapshot()
                registry = CollectorRegistry()
                registry.register(snapshot)
                self._text, self._all_up = generate_latest(registry), snapshot.all_up
                self._read_at = time.monotonic()
            return self._text, self._all_up
        finally:
            self._reading.release()


class _Snapshot(Collector):
    """One reading of all servers."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self.all_up = True
        away: set[str] = set()
        for name, (help_, labels) in FAMILIES.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            self._families[name] = family(name, help_, labels=labels)
        for using in servers():
            began = time.monotonic()
            up = self._locks(using)
            if not up:
                self.all_up = False
                away.add(server_of(using).address)
            self._add("redislock_up", [using], up)
            self._add("redislock_scrape_seconds", [using], time.monotonic() - began)
        self._jobs(away)

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        return self._families.values()

    def _add(self, name: str, labels: list[str], value: float) -> None:
        self._families[name].add_metric(labels, float(value))

    # Locks.

    def _locks(self, using: str) -> bool:
        """Add the locks of a server. Return whether it has answered, with each of its nodes."""
        listing = Listing(inspectors(using))
        try:
            page = listing.page(limit=MOST_LOCKS)
            waits = _oldest_waits(using, page.items)
            cleared = sum(one.clearings() for one in inspectors(using))
            missed = sum(one.missed_wakeups() for one in inspectors(using))
        except LockError:
            return False
        self._add("redislock_clearings_total", [using], cleared)
        self._add("redislock_missed_wakeups_total", [using], missed)
        self._add("redislock_unread_locks", [using], page.total - len(page.items))
        groups: dict[str, list[LockInfo]] = {OTHER: []}
        for lock in page.items:
            groups.setdefault(pattern(lock.name), []).append(lock)
        for its, locks in groups.items():
            labels = [using, its]
            states = Counter(lock.state for lock in locks)
            for state in State:
                self._add("redislock_locks", [*labels, state], states[state])
            contended = sum(lock.waiters > 0 for lock in locks)
            self._add("redislock_contended_locks", labels, contended)
            self._add("redislock_waiters", labels, sum(lock.waiters for lock in locks))
            self._add("redislock_oldest_wait_seconds", labels, waits.get(its, 0.0))
            holds = (one.holder.held or 0.0 for lock in locks for one in lock.holders)
            self._add("redislock_oldest_hold_seconds", labels, max(holds, default=0.0))
        with suppress(LockError):  # the user may only look at locks
            self._tasks(using)
        return not listing.unasked

    def _tasks(self, using: str) -> None:
        groups: dict[str, list[TasksInfo]] = {}
        for one in names(using):
            groups.setdefault(pattern(one.name), []).append(one)
        for its, some in groups.items():
            for stage in Stage:
                number = sum(one.counts[stage] for one in some)
                self._add("redislock_tasks", [using, its, stage], number)
            stuck = sum(one.waits for one in some if one.stuck)
            self._add("redislock_stuck_tasks", [using, its], stuck)

    # Jobs.

    def _jobs(self, away: set[str]) -> None:
        for info in _all_jobs(away):
            labels = [info.using, info.name]
            for state in JobState:
                self._add("redislock_job_state", [*labels, state], info.state == state)
            ended = (run for run in info.runs if run.ended and run.started)
            if (last := next(ended, None)) is not None:
                for outcome in (RunOutcome.DONE, RunOutcome.FAILED, RunOutcome.LOST):
                    self._add(
                        "redislock_job_last_outcome", [*labels, outcome], last.outcome == outcome
                    )
                self._add("redislock_job_last_duration_seconds", labels, last.duration or 0.0)
            if info.done is not None:
                self._add(
                    "redislock_job_last_success_timestamp_seconds", labels, info.done.timestamp()
                )
            if info.next is not None:
                self._add("redislock_job_next_timestamp_seconds", labels, info.next.timestamp())


FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "redislock_up": ("Whether the server, with each of its nodes, has answered.", ("using",)),
    "redislock_scrape_seconds": ("How long reading the locks took.", ("using",)),
    "redislock_locks": ("Locks that are held in the fleet, by state.", (*_LOCK, "state")),
    "redislock_unread_locks": (
        f"Held locks beyond the {MOST_LOCKS} that are read; nobody waits for them.",
        ("using",),
    ),
    "redislock_contended_locks": ("Locks that somebody waits for.", _LOCK),
    "redislock_waiters": ("Waiters for locks.", _LOCK),
    "redislock_oldest_wait_seconds": (
        f"How long the first waiter has waited, of the {MOST_LINES} locks with most waiters.",
        _LOCK,
    ),
    "redislock_oldest_hold_seconds": ("How long the lock that is held longest is held.", _LOCK),
    "redislock_clearings_total": ("Locks that operators have cleared.", ("using",)),
    "redislock_missed_wakeups_total": (
        "Handovers that no message announced to a waiter that listened.",
        ("using",),
    ),
    "redislock_tasks": ("Tasks of unique and limited, by stage.", (*_LOCK, "stage")),
    "redislock_stuck_tasks": (
        "Tasks that wait for a call or a sweep, since none of their name runs.",
        _LOCK,
    ),
    "redislock_job_state": ("1 for the state that a periodic job is in.", (*_JOB, "state")),
    "redislock_job_last_outcome": (
        "1 for the outcome of the last run that has ended.",
        (*_JOB, "outcome"),
    ),
    "redislock_job_last_duration_seconds": ("How long that run took.", _JOB),
    "redislock_job_last_success_timestamp_seconds": ("When a run was last done.", _JOB),
    "redislock_job_next_timestamp_seconds": ("The first tick that nobody has claimed.", _JOB),
}
"""All metrics of the fleet, with their help and labels. None is named `job`: Prometheus gives that
label to each target."""


def _oldest_waits(using: str, locks: list[LockInfo]) -> dict[str, float]:
    """Return how long the first waiters of the locks with most waiters have waited, the longest of
    each pattern."""
    inspector = Inspector(using)
    found: dict[str, float] = {}
    contended = sorted((lock for lock in locks if lock.waiters), key=lambda lock: -lock.waiters)
    for lock in contended[:MOST_LINES]:
        for waiter in inspector.waiters(lock, 1):
            its = pattern(lock.name)
            found[its] = max(found.get(its, 0.0), waiter.waited)
    return found


def _all_jobs(away: set[str]) -> Iterator[JobInfo]:
    """Yield the jobs whose servers can be asked. One that has just not answered is not asked once
    more: a scrape has ten seconds."""
    Ledger()  # finds them
    for using in sorted({job.policy.using for job in jobs()}):
        if server_of(using).address in away:
            continue
        with suppress(LockError):
            yield from Ledger(using).jobs()


def response(fleet: Fleet) -> tuple[int, str, bytes]:
    """Return the status, the type and the body for a scrape."""
    try:
        text, _all_up = fleet.scrape()
    except Busy as busy:
        return 503, "text/plain; charset=utf-8", f"{busy}\n".encode()
    return 200, CONTENT_TYPE_LATEST, text


# Serve the metrics of the fleet over HTTP, from a process of its own.


MOST_AT_ONCE = 64
"""Requests that are read or answered at the same time. For one more, the oldest that was not yet
read is dropped, since it comes from a slow client."""
SLOWEST = 10.0
"""Seconds that a client has to send its request, and to take its answer."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = SLOWEST

    def do_GET(self) -> None:
        if not self.server.was_read(self.connection):
            return
        status, content_type, body = 404, "text/plain", b"The metrics are at /metrics.\n"
        if self.path.partition("?")[0] == "/metrics":
            status, content_type, body = response(self.server.fleet)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  http.server looks for this name

    def log_message(self, *_args: Any) -> None:
        """Scrapes come every few seconds, and are no news."""


class Server(HTTPServer):
    """Answers each request in a thread of its own, and waits for no client. Port 0: a free one."""

    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.fleet = Fleet()
        self._open: set[Any] = set()
        """The connections."""
        self._unread: dict[Any, float] = {}
        """Those whose request is being read, and until when, the oldest first."""
        if not host:  # all addresses, those of IPv6 as well if there are
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        found: Any = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family, _, _, _, address = found
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer would look up the host's name, which may take long.
        super(HTTPServer, self).server_bind()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        text = str(host)
        return f"http://{f'[{text}]' if ':' in text else text}:{port}/metrics"

    def was_read(self, request: Any) -> bool:
        """Note that a request was read. Return False if it was dropped."""
        return self._unread.pop(request, None) is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= MOST_AT_ONCE:
            self._drop(next(iter(self._unread), request))
        self._open.add(request)
        self._unread[request] = now() + SLOWEST
        if start(partial(self._answer, request, client_address), "redislock-metrics") is None:
            self._close(request)

    def service_actions(self) -> None:
        """Drop the requests that are late. The loop that accepts calls this twice a second."""
        for request, until in self._unread.copy().items():
            if now() > until:
                self._drop(request)

    def _drop(self, request: Any) -> None:
        """Let the thread that reads a request find its end."""
        self._unread.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has gone
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self._close(request)

    def _close(self, request: Any) -> None:
        self._unread.pop(request, None)
        self._open.discard(request)
        self.shutdown_request(request)
