"""The page of the tour of example_project/ in a browser: its script, its looks, the keyboard.

tests/test_tour.py has what its processes and buttons do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.chromium import Chromium
from tests.browser.window import PHONE, Window, expect
from tests.tour import SLOW, Tour


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    tour = Tour(tmp_path_factory.mktemp("tour"))
    yield tour
    tour.close()


Open = Callable[..., Window]

TOP = "it => it.getBoundingClientRect().top"


@pytest.fixture
def site(tour: Tour) -> Tour:
    """The site on which windows are opened."""
    return tour


@pytest.fixture
def open_tour(open_window: Open) -> Open:
    """Open windows on its page, for nobody in particular."""

    def open_tour(**context: Any) -> Window:
        window: Window = open_window("", **context)
        window.goes_to("/tour/")
        return window

    return open_tour


@pytest.fixture
def window(chromium: Chromium, open_tour: Open) -> Window:
    """A window in which customers buy under the lock."""
    window = chromium.run(open_tour)
    chromium.run(press, window, "Buy with the lock", "take the lock")
    chromium.run(sees, window, r"customer-\d")
    return window


def press(window: Window, text: str, says: str) -> str:
    """Press a button, and return what the page says."""
    said = window.page.locator("#said")
    for _ in range(3):  # The lock may just have been on its way from one to another.
        window.page.get_by_role("button", name=text).click()
        expect(said).not_to_be_empty()
        if re.search(says, said.inner_text()):
            break
    expect(said).to_have_text(re.compile(says))
    return said.inner_text()


def until(window: Window, look: Callable[[], Any]) -> Any:
    """Look until there is something to see, while the page goes on."""
    for _ in range(int(SLOW / 0.1)):
        if seen := look():
            return seen
        window.page.wait_for_timeout(100)
    raise AssertionError(window.page.locator("#live").inner_text())


def sees(window: Window, pattern: str) -> str:
    """Wait until the pattern is in the live part, and return the match."""
    live = window.page.locator("#live")
    return str(until(window, lambda: re.search(pattern, live.inner_text()))[0])


def lock(window: Window, name: str) -> str:
    """What is shown of a lock; empty when nobody holds it."""
    return str(
        window.page.locator(".locks > li")
        .filter(has=window.page.get_by_role("heading", name=re.compile(f"^{name}")))
        .evaluate_all("found => found.map(it => it.innerText).join()")
    )


def holder(window: Window) -> str:
    """The process that holds the stock's lock; empty when none does."""
    found = re.search(r":(\d+):customer-\d\s+for", lock(window, "stock:1"))
    return found[1] if found else ""


def test_locks_are_live(window: Window) -> None:
    """The stock's lock goes from hand to hand while the page stays."""
    window.page.evaluate("window.mark = 'here'")
    first = until(window, lambda: holder(window))
    until(window, lambda: holder(window) not in ("", first))
    assert window.page.evaluate("window.mark") == "here"


def test_the_tour_does_not_answer(window: Window) -> None:
    """The page is marked as old until the tour answers again, and a button says so."""
    window.expects("failed: .*/tour/")
    live = window.page.locator("#live")
    window.page.route("**/tour/*/**", lambda route: route.abort())
    window.page.get_by_role("button", name="Kill the holder").click()
    expect(window.page.locator("#said")).to_contain_text("Is the tour still running?")
    expect(live).to_have_class("old")
    window.page.unroute("**/tour/*/**")
    expect(live).not_to_have_class("old")


def test_without_javascript(open_tour: Open) -> None:
    """The page is shown once, and a button answers in words."""
    window = open_tour(java_script_enabled=False)
    assert "Without JavaScript" in window.page.content()
    window.page.get_by_role("button", name="Buy with the lock").click()
    expect(window.page.locator("body")).to_contain_text("take the lock")


def test_nobody_is_kept_out(open_tour: Open) -> None:
    """axe finds no barrier, bright or dark, wide or on a phone; nothing scrolls sideways. The page
    shows a killed holder, red bars and all code."""
    window = open_tour(bypass_csp=True)
    press(window, "Buy without the lock", "buy without the lock")
    expect(window.page.locator(".lanes .two-at-once").first).to_be_attached()
    press(window, "Buy with the lock", "take the lock")
    sees(window, r"customer-\d for")
    press(window, "Kill the holder", r"is killed\.")
    expect(window.page.locator(".locks .killed s")).to_have_count(2)
    window.page.get_by_role("checkbox").uncheck()
    window.page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
    for size in ({"width": 1280, "height": 900}, PHONE):
        window.page.set_viewport_size(size)  # type: ignore[arg-type]
        assert window.does_not_scroll_sideways()
        assert window.does_not_scroll_sideways("#beside")
        for scheme in ("light", "dark"):
            window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert window.barriers() == {}, (size, scheme)
        assert window.bright_parts() == []
