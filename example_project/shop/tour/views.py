"""The page of the tour.

`live`, templates/shop/live.html and static/shop/tour.js show locks live: copy them to make such a
page for your own project.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from django.conf import settings
from django.core.cache import cache
from django.db.transaction import non_atomic_requests
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from django_redislock import Holder, redis_lock
from django_redislock.inspection import Inspector

from .. import periodic
from ..models import LockIncident, Order, Product, StockReport
from ..receivers import write_down
from ..services import sell
from ..templatetags.times import duration
from . import moments, traffic
from .lanes import LEGEND, lanes
from .moments import Doing
from .team import Team

ALWAYS_SHOWN = [traffic.STOCK, "export", "catalogue", "single_flight:bestsellers", traffic.OLD_KEY]
SECONDS_STOPPED = 6
NOBODY = "Nobody holds the lock at this moment. Press the button again."
WITHOUT = "The customers buy without the lock, so nobody holds it."

team: Team | None = None
"""Set by `manage.py tour`."""


class Code(NamedTuple):
    """A function's code, as it is in its file."""

    name: str
    place: str
    source: str


def code(function: Callable[..., Any]) -> Code:
    function = inspect.unwrap(function)
    path = inspect.getsourcefile(function)
    lines, first = inspect.getsourcelines(function)
    place = f"{path}:{first}".removeprefix(f"{settings.BASE_DIR}/")
    return Code(function.__name__, place, "".join(lines))


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show the stops of the tour, and beside them the live part."""
    functions = [
        *(traffic.buy, traffic.buy_unlocked, traffic.customer, sell, traffic.export),
        *(traffic.read_catalogue, traffic.print_catalogue, traffic.bestsellers),
        *(traffic.open_shop, traffic.import_prices, traffic.old_program),
        *(periodic.stock_report, write_down, kill, stop, clear, live, locks_now),
    ]
    context = {function.__name__: code(function) for function in functions}
    return render(request, "shop/tour.html", {"code": context, **now()})


@require_GET
def live(request: HttpRequest) -> HttpResponse:
    """Show the part of the page that is fetched every second."""
    return render(request, "shop/live.html", now())


def now() -> dict[str, Any]:
    return {
        "lanes": lanes(moments.latest(), time.time()),
        "legend": LEGEND,
        "locks": locks_now(),
        "incidents": LockIncident.objects.order_by("-pk")[:6],
        **sales(),
    }


def locks_now() -> list[dict[str, Any]]:
    """Return the holders and waiters of each lock: a few requests to Redis, and one for each
    queue."""
    found = dict.fromkeys(ALWAYS_SHOWN)
    for inspector in (Inspector(), Inspector(cache_locks=True)):
        for lock in inspector.all():
            waiters = inspector.waiters(lock, limit=5) if lock.waiters else []
            holders = [(one, fate(one.holder.owner)) for one in lock.holders]
            found[lock.name] = {"lock": lock, "holders": holders, "waiters": waiters}
    return [{"name": name, **(found[name] or {})} for name in found]


def sales() -> dict[str, Any]:
    """Return figures of the shop: every lamp that was sold should be missing on the shelf."""
    lamp = Product.objects.filter(pk=traffic.LAMP).first()
    sold = Order.objects.filter(product=lamp).count()
    gone = traffic.LAMPS - lamp.stock if lamp else 0
    return {
        "unlocked": cache.get(traffic.UNLOCKED),
        "sold": sold,
        "gone": gone,
        "twice": sold - gone,
        "computed": cache.get("tour:computed", 0),
        "asked": cache.get("tour:asked", 0),
        "reports": StockReport.objects.count(),
    }


def without_lock() -> str:
    cache.set(traffic.UNLOCKED, True)
    return "From their next lamp on, the customers buy without the lock."


def with_lock() -> str:
    cache.delete(traffic.UNLOCKED)
    return "From their next lamp on, the customers take the lock."


def kill() -> str:
    """Kill the holder, which can't release the lock."""
    holder = redis_lock(traffic.STOCK).holder()
    if holder is None or not team.kill(pid := pid_of(holder.owner)):
        return why_not(holder)
    incident("killed", pid, "SIGKILL; a new process takes its place")
    return f"Process {pid} is killed."


def stop() -> str:
    """Pause the holder for longer than its lease of two seconds. It does not notice."""
    holder = redis_lock(traffic.STOCK).holder()
    if holder is None or not team.stop_for(pid := pid_of(holder.owner), SECONDS_STOPPED):
        return why_not(holder)
    incident("stopped", pid, f"SIGSTOP, for {SECONDS_STOPPED} seconds")
    return f"Process {pid} is stopped for {SECONDS_STOPPED} seconds."


def why_not(holder: Holder | None) -> str:
    """Say why the button did nothing."""
    if holder is None:
        return WITHOUT if cache.get(traffic.UNLOCKED) else NOBODY
    process = f"Process {pid_of(holder.owner)}"
    if (done := fate(holder.owner)) is None:
        return f"{process} is none of the tour's."
    return f"{process} is {done} already. Its lease ends in {duration(holder.remaining or 0)}."


def pid_of(owner: str | None) -> int:
    """Return the number of the process that the owner of a lock names."""
    _host, pid, _thread = (owner or "::").split(":", 2)
    return int(pid or 0)


def fate(owner: str | None) -> Doing | None:
    """Return whether the tour killed or stopped the process of that owner."""
    return team.fate(pid_of(owner))


def clear(name: str) -> str:
    """Take a lock away from the holder that we see, and not from a later one."""
    inspector = Inspector()
    lock = inspector.get(name)
    if lock and inspector.clear(lock, by="you", reason="the button was pressed"):
        return f"{name} is taken away from {lock.holder.owner}."
    return f"{name} is free, or has just changed hands."


def incident(outcome: str, pid: int, why: str) -> None:
    LockIncident.objects.create(
        outcome=outcome, name=traffic.STOCK, owner=f"process {pid}", why=why
    )


BUTTONS: dict[str, Callable[[], str]] = {
    "without-lock": without_lock,
    "with-lock": with_lock,
    "kill": kill,
    "stop": stop,
    "clear": lambda: clear(traffic.STOCK),
    "clear-accounts": lambda: clear("export:accounts"),
}


@require_POST
@non_atomic_requests
def press(_request: HttpRequest, button: str) -> HttpResponse:
    """Press one of the page's buttons, and answer with the outcome."""
    if button not in BUTTONS:
        raise Http404
    return HttpResponse(BUTTONS[button](), content_type="text/plain; charset=utf-8")
