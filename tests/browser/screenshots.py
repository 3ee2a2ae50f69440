"""The pictures of the documentation: `make screenshots` writes them into docs/images/.

They are no tests, and no run of the tests changes them: pytest collects this file only when it is
named. Whoever makes them looks at each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from django_redislock.base.tokens import NO_PROCESS
from tests.browser.chromium import Chromium
from tests.browser.site import Site
from tests.browser.test_tour import Tour, press, sees
from tests.browser.window import Open, Window
from tests.operations.calling import granted
from tests.processes import ROOT

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 100_000


def waits(site: Site, name: str, owner: str, label: str, seconds: float) -> None:
    """Somebody elsewhere, since then."""
    token, now = f"{owner:0<32.32}", time.time()
    site.redis.zadd(f"redislock:{{{name}}}:queue", {token: int((now - seconds) * 1e6)})
    says = f"{int(now * 1e6)}|30000||{owner}|{label}"
    site.redis.hset(f"redislock:{{{name}}}:waiters", token, says)


def fleet(site: Site) -> None:
    """What a project with a few hosts has at some moment."""
    alive = {"process": NO_PROCESS}
    granted(
        site.redis,
        "invoice:42",
        silent=8.6,
        ttl=30,
        owner="web-1:4711:MainThread",
        label="billing/tasks.py:118 in charge",
        fence=1795300128112464,
        **alive,
    )
    waits(site, "invoice:42", "web-2:977:MainThread", "billing/tasks.py:118 in charge", 6.2)
    waits(site, "invoice:42", "cron-1:30112:MainThread", "billing/dunning.py:41 in remind", 1.7)
    granted(
        site.redis,
        "import:supplier",
        left=52,
        silent=754,
        ttl=60,
        owner="worker-3:212:MainThread",
        label="stock/imports.py:64 in fetch",
        fence=1795299382004120,
        **alive,
    )
    waits(site, "import:supplier", "worker-1:208:MainThread", "stock/imports.py:64 in fetch", 301)
    granted(
        site.redis,
        "newsletter",
        silent=22.5,
        ttl=30,
        owner="worker-2:198:MainThread",
        label="news/send.py:27 in send",
        fence=1795300110902711,
        **alive,
    )
    for seconds in (12, 41):
        granted(
            site.redis,
            "supplier-api",
            places=3,
            silent=seconds,
            owner=f"worker-{seconds % 10}:204:MainThread",
            label="stock/supplier.py:23 in ask",
            **alive,
        )
    site.left_behind(
        "export:accounts",
        owner="worker-2:77:MainThread",
        label="accounts/export.py:15 in run",
        fence=1795299236112000,
    )
    site.strangers("legacy:sync", value="b2f9e1", seconds=95)


def to_list(window: Window) -> None:
    window.goes_to_list()


def to_detail(window: Window) -> None:
    window.goes_to(window.site.address_of("invoice:42"))


def to_clear(window: Window) -> None:
    window.goes_to_list()
    window.asks_to_clear("invoice:42", "export:accounts")
    window.page.locator("input[name=reason]").fill("web-1 hangs since the deployment")


HEIGHTS = {to_list: 680, to_detail: 880, to_clear: 500}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("to", HEIGHTS, ids=lambda to: to.__name__)
def test_screenshot(
    site: Site, open_window: Open, to: Callable[[Window], None], scheme: str
) -> None:
    fleet(site)
    size = {"width": 1280, "height": HEIGHTS[to]}
    window = open_window(color_scheme=scheme, viewport=size, reduced_motion="reduce")
    # Without the list of the admin's other models, which is of no interest here.
    window.remembers("django.admin.navSidebarIsOpen", "false")
    to(window)
    save(window, f"admin-{to.__name__.removeprefix('to_')}-{scheme}")


def save(window: Window, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.png"
    window.page.screenshot(path=path)
    assert path.stat().st_size < MAX_BYTES


def test_screenshot_of_the_tour(chromium: Chromium, tmp_path: Path) -> None:
    """While its traffic is what it happens to be."""
    tour = Tour(tmp_path)
    try:
        for scheme in ("light", "dark"):
            size = {"width": 840, "height": 500}
            window = Window(chromium.browser, tour, "", color_scheme=scheme, viewport=size)
            window.goes_to("/tour/")
            sees(window, r"customer-\d waits")
            press(window, "Stop the holder", "stands still")
            sees(window, "refused")
            window.page.evaluate("scrollTo(0, 0)")
            save(window, f"tour-{scheme}")
            window.close()
    finally:
        tour.close()
