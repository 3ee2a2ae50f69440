"""The pictures of the documentation: `make screenshots` writes them into docs/images/.

They are no tests, and no run of the tests changes them: pytest collects this file only when it is
named. Whoever makes them looks at each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium
from tests.browser.fleet import fleet
from tests.browser.site import Site
from tests.browser.test_tour import Tour, press, sees
from tests.browser.window import Open, Window
from tests.processes import ROOT

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 150_000


def to_list(window: Window) -> None:
    window.goes_to_list()


def to_detail(window: Window) -> None:
    window.goes_to(window.site.address_of("stock:1"))


def to_clear(window: Window) -> None:
    window.goes_to(window.site.address_of("import:supplier", "clear"))
    window.page.locator("input[name=reason]").fill("the supplier does not answer")


HEIGHTS = {to_list: 900, to_detail: 1010, to_clear: 480}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("to", HEIGHTS, ids=lambda to: to.__name__)
def test_screenshot(
    site: Site, open_window: Open, to: Callable[[Window], None], scheme: str
) -> None:
    fleet(site)
    size = {"width": 1280, "height": HEIGHTS[to]}
    window = open_window(color_scheme=scheme, viewport=size, reduced_motion="reduce")
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
            size = {"width": 900, "height": 450}
            window = Window(chromium.browser, tour, "", color_scheme=scheme, viewport=size)
            window.goes_to("/tour/")
            sees(window, r"customer-\d waits")
            press(window, "Buy without the lock", "buy without the lock")
            window.page.wait_for_timeout(5000)  # for lamps that are sold twice
            press(window, "Buy with the lock", "take the lock")
            sees(window, r"customer-\d for")
            press(window, "Stop the holder", "is stopped for")
            window.page.wait_for_timeout(7000)  # until it has gone on
            press(window, "Kill the holder", r"is killed\.")
            window.page.evaluate("location.hash = '#stop-3'")
            window.page.wait_for_timeout(1500)  # for a gap that is wide enough to see
            save(window, f"tour-{scheme}")
            window.close()
    finally:
        tour.close()
