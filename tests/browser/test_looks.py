"""How it looks, and whether everybody can use it: colours, widths, keyboard, screen readers."""

from __future__ import annotations

import re
from collections.abc import Callable

import django
import pytest

from tests.browser.fleet import fleet
from tests.browser.site import Site
from tests.browser.window import PHONE, Open, Window, expect

FIELDS = ["name", "state", "holder", "waiters", "held", "remaining"]


def fill(site: Site) -> None:
    """Locks of all kinds, with long names and labels."""
    site.us.hold("invoice:42", label="billing/tasks.py:118 in charge_customers_of_the_month")
    site.us.hold("report:daily", label="the daily report", ttl=60)
    site.others.wait_for("invoice:42", label="billing/tasks.py:118 in charge")
    site.await_queue("invoice:42", 1)
    site.left_behind(
        "warehouse:synchronisation:with-the-supplier:2026-11-21",
        owner="worker-7.eu-central.example.internal:4711:MainThread",
        label="warehouse/management/commands/synchronise.py:77 in handle",
    )
    site.strangers("legacy:import", seconds=900)


def to_list(window: Window) -> None:
    window.goes_to_list()


def to_fleet(window: Window) -> None:
    fleet(window.site)
    window.goes_to_list()


def to_nothing(window: Window) -> None:
    window.site.clean()
    window.goes_to_list()
    expect(window.page.locator("#redislock-empty")).to_contain_text("Nobody holds a lock now")


def to_no_match(window: Window) -> None:
    window.goes_to_list(q="nix")
    expect(window.page.locator("#redislock-empty")).to_contain_text("No lock matches")


def to_lock(window: Window) -> None:
    window.goes_to(window.site.address_of("invoice:42"))


def to_stale_lock(window: Window) -> None:
    window.goes_to(
        window.site.address_of("warehouse:synchronisation:with-the-supplier:2026-11-21")
    )
    expect(window.page.locator("#redislock-story")).to_contain_text("Clearing is safe")


def to_crowded_lock(window: Window) -> None:
    """With 300 waiters, and everything unfolded."""
    fleet(window.site)
    window.goes_to(window.site.address_of("stock:1"))
    for summary in window.page.locator("#redislock-tables summary").all():
        summary.click()


def to_semaphore(window: Window) -> None:
    """One of its holders is unknown."""
    fleet(window.site)
    window.goes_to(window.site.address_of("mailbox"))


def to_question_of_one(window: Window) -> None:
    window.goes_to(window.site.address_of("invoice:42", "clear"))


def to_clearings(window: Window) -> None:
    window.clears("report:daily", reason="it hangs")
    window.page.get_by_role("link", name="All locks").click()
    window.page.get_by_role("link", name="Clearings").click()


def to_free_lock(window: Window) -> None:
    window.clears("report:daily", reason="it hangs")
    window.goes_to(window.site.address_of("report:daily"))


def to_history(window: Window) -> None:
    window.clears("report:daily", reason="it hangs")
    window.goes_to(window.site.address_of("report:daily", "history"))


def to_question(window: Window) -> None:
    window.goes_to_list()
    window.asks_to_clear("invoice:42", "legacy:import")


def to_tasks(window: Window) -> None:
    window.site.parked("sync:acme:customers-and-their-orders", "7f3b6c1e-0d0a-4a53", "m2")
    window.goes_to_list()
    window.page.locator("#redislock-tasks summary").click()


def to_task(window: Window) -> None:
    to_tasks(window)
    window.page.locator("#redislock-tasks").get_by_role("link").click()
    expect(window.page.locator("#redislock-story")).to_contain_text("Next: the task")


def to_away(window: Window) -> None:
    if window.site.redis_server.external:
        pytest.skip("the server is not ours to stop")
    window.site.redis_server.stop()
    try:
        window.goes_to(window.site.list_of(), status=503)
    finally:
        window.site.redis_server.start()


To = Callable[[Window], None]
PAGES = [
    to_list,
    to_fleet,
    to_nothing,
    to_no_match,
    to_lock,
    to_stale_lock,
    to_crowded_lock,
    to_semaphore,
    to_question_of_one,
    to_clearings,
    to_free_lock,
    to_history,
    to_question,
    to_tasks,
    to_task,
    to_away,
]
each_page = pytest.mark.parametrize("to", PAGES, ids=lambda to: to.__name__)


QUIET = """
/* Colours on their way from one scheme to the other are not looked at. */
* { transition: none !important }
/* axe wants that where a title is longer than the links before it, see below. */
.breadcrumbs a { text-decoration: underline }
"""


@each_page
def test_each_page(site: Site, open_window: Open, to: To) -> None:
    """axe finds no barrier, in bright and in dark: labels, roles, headings, contrast. Its title is
    there once. At 1280 pixels nothing of the page or the list is out of sight; on a phone, no page
    moves sideways."""
    fill(site)
    window = open_window(bypass_csp=True, has_touch=True)
    to(window)
    for title in window.page.locator(".redislock-title").all():
        expect(title).not_to_be_visible()  # it is for django-unfold
    window.page.add_style_tag(content=QUIET)
    for scheme in ("light", "dark"):
        window.page.emulate_media(color_scheme=scheme)
        assert window.barriers() == {}, scheme
    assert window.bright_parts() == []
    assert window.does_not_scroll_sideways()
    for results in window.page.locator("#changelist .results").all():
        assert results.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    window.page.set_viewport_size(PHONE)
    assert window.does_not_scroll_sideways()


def test_right_to_left(site: Site, open_window: Open) -> None:
    """In Arabic, names, holders and times read from left to right all the same."""
    fleet(site)
    window = open_window(bypass_csp=True, locale="ar")
    window.goes_to_list()
    expect(window.page.locator("html")).to_have_attribute("dir", "rtl")
    row = window.row("export:accounts")
    for cell in ("name", "holder", "held_for", "remaining"):
        for value in row.locator(f".field-{cell} :is(bdi, time)").all():
            assert value.evaluate("it => getComputedStyle(it).direction") == "ltr"
        assert row.locator(f".field-{cell} :is(bdi, time)").count() >= 1
    window.page.add_style_tag(content=QUIET)
    assert window.barriers() == {}
    assert window.does_not_scroll_sideways()
    window.page.set_viewport_size(PHONE)
    assert window.does_not_scroll_sideways()


def test_on_a_phone(site: Site, open_window: Open) -> None:
    """Name, state, holder and waiters stay, and a link leads to the filters below the rows."""
    fleet(site)
    window = open_window(viewport=PHONE, has_touch=True)
    window.goes_to_list()
    row = window.row("export:accounts")
    shown = [cell for cell in FIELDS if row.locator(f".field-{cell}").is_visible()]
    assert shown == ["name", "state", "holder", "waiters"]
    filters = window.page.locator("#changelist-filter")
    expect(filters).not_to_be_in_viewport()
    window.page.get_by_role("link", name="Filters").tap()
    expect(filters).to_be_in_viewport()
    window.goes_to_list(state="stale")
    expect(window.rows).to_have_count(2)


def test_djangos_own_barrier(site: Site, open_window: Open) -> None:
    """The barrier that is left out above exists on other pages of the admin until Django 6.0."""
    site.make_group("a name that is longer than all the links before it")
    window = open_window("superuser", bypass_csp=True)
    window.goes_to("/admin/auth/group/1/change/")
    found = any(where.startswith("link-in-text-block") for where in window.barriers())
    assert found == (django.VERSION < (6, 0))


def test_the_keyboard_alone(site: Site, window: Window) -> None:
    """Tick a lock, choose the action, give the reason. A screen reader has a name for the tick,
    the meter and the choice of the refresh."""
    site.us.hold("job")
    window.goes_to_list()
    row = window.row("job")
    expect(row.get_by_role("checkbox", name="job")).to_be_visible()
    expect(row.get_by_role("meter", name=re.compile("."))).to_be_visible()
    expect(window.page.get_by_label(re.compile("refresh", re.IGNORECASE))).to_be_visible()
    keyboard = window.page.keyboard
    window.tabs_to(window.row("job").locator("input[type=checkbox]"))
    keyboard.press("Space")
    expect(window.row("job")).to_have_class(re.compile("selected"))
    window.tabs_to(window.page.locator("select[name=action]"))
    keyboard.type("Clear")
    window.tabs_to(window.page.locator("button[name=index]"))
    keyboard.press("Enter")
    reason = window.page.locator("input[name=reason]")
    expect(reason).to_be_focused()
    keyboard.type("it hangs")
    keyboard.press("Enter")
    expect(window.page.locator(".messagelist .success")).to_contain_text("job")
    assert site.us.is_told("job").startswith("LeaseRevoked")
