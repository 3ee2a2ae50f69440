"""Under django-unfold, which has another design of the same pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.site import Site
from tests.browser.window import Window, expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator

if os.environ.get("REDISLOCK_REQUIRE_CHROMIUM") != "1":
    pytest.importorskip("unfold")


@pytest.fixture(scope="module")
def unfold_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("unfold"), "tests.browser.unfold_settings")
    yield site
    site.close()


@pytest.fixture
def site(unfold_site: Site) -> Site:
    unfold_site.clean()
    return unfold_site


def has_an_edge(field: Locator) -> bool:
    """Whether a border or a background shows where the field begins and ends."""
    style = "it => (({borderTopWidth, backgroundColor}) => [borderTopWidth, backgroundColor])"
    width, background = field.evaluate(f"{style}(getComputedStyle(it))")
    return bool(width != "0px" or background != "rgba(0, 0, 0, 0)")


def test_the_first_and_the_last(site: Site, window: Window) -> None:
    """The list refreshes itself, also from and to an empty list, and new locks can be cleared."""
    window.goes_to_list()
    window.page.locator("#redislock-refresh").select_option("2")
    window.page.evaluate("window.mark = 'here'")
    for name in ("a", "b"):
        site.us.hold(name)
        expect(window.row(name)).to_be_visible()
        site.us.release(name)
        expect(window.rows).to_have_count(0)
    site.us.hold("a")
    expect(window.row("a")).to_be_visible()
    expect(window.row("a").locator("meter")).to_be_visible()
    expect(window.row("a").locator(".redislock-state")).to_have_text("held")
    site.us.hold("b")
    expect(window.row("b")).to_be_visible()
    for name in ("a", "b"):
        window.row(name).locator("input[type=checkbox]").check()
    expect(window.page.locator(".action-counter")).to_contain_text("2 of 2")
    assert window.page.evaluate("window.mark === 'here'")
    window.goes_on_with_the_action()
    window.confirms("it hangs")
    expect(window.page.locator("body")).to_contain_text("Cleared 2 locks")


def test_clear_from_its_page(site: Site, window: Window) -> None:
    """The lock's page, a confirmation with visible fields, and the page without Redis work. Each
    has a title, which django-unfold leaves out, or would begin with a capital letter."""
    site.us.hold("job", label="the monthly run")
    window.goes_to(site.address_of("job"))
    expect(window.page.locator(".redislock-title")).to_have_text("job")
    expect(window.page.locator("body")).to_contain_text("the monthly run")
    assert window.does_not_scroll_sideways()
    window.page.get_by_role("link", name="Clear…").click()
    expect(window.page.locator(".redislock-title")).to_be_visible()
    form = window.page.locator("#content form")
    assert has_an_edge(form.locator("input[name=reason]"))
    assert has_an_edge(form.locator("[type=submit]"))
    window.confirms("it hangs")
    expect(window.page.locator("body")).to_contain_text("Cleared “job”.")
    assert site.us.is_told("job").startswith("LeaseRevoked")
    window.goes_to(site.address_of("job", "history"))
    if site.redis_server.external:
        return
    site.redis_server.stop()
    try:
        window.goes_to(site.list_of(), status=503)
        expect(window.page.locator(".redislock-title")).to_contain_text("does not answer")
    finally:
        site.redis_server.start()
