"""The list of locks: what it shows, and how it is searched, narrowed, ordered and paged."""

from __future__ import annotations

import re
import socket

from tests.browser.site import Site
from tests.browser.window import Open, Window, expect


def test_a_row(site: Site, window: Window) -> None:
    """The name, a badge, a meter with its words, holder and label, waiters, fencing token."""
    site.us.hold("invoice:42", label="the monthly run", ttl=600)
    site.others.wait_for("invoice:42")
    site.await_queue("invoice:42", 1)
    window.goes_to_list()
    row = window.row("invoice:42")
    expect(row.locator(".redislock-state")).to_have_text("held")
    expect(row.locator(".redislock-state")).to_be_visible()
    meter = row.locator("meter")
    assert float(meter.get_attribute("max") or 0) == 600
    assert 500 < float(meter.get_attribute("value") or 0) <= 600
    holder = row.locator(".field-holder")
    expect(holder).to_contain_text(f"{site.us.process.pid}")
    expect(holder).to_contain_text(socket.gethostname())
    expect(holder).to_contain_text("the monthly run")
    expect(row.locator(".field-waiters")).to_have_text("1")
    expect(row.locator(".field-fencing_token")).to_have_text(site.fencing_token("invoice:42"))
    assert site.token("invoice:42") not in window.page.content()


def test_the_summary(site: Site, window: Window) -> None:
    """How many are held, contended and stale, and what the server is."""
    site.us.hold("a")
    site.us.hold("b")
    site.others.wait_for("b")
    site.await_queue("b", 1)
    site.left_behind("c")
    window.goes_to_list()
    summary = window.page.locator("#redislock-summary")
    expect(summary).to_contain_text("2 held")
    expect(summary).to_contain_text("1 stale")
    expect(summary).to_contain_text("1 contended")
    expect(summary).to_contain_text(re.compile(r"(Redis|Valkey)[^.]*\d", re.IGNORECASE))


def test_without_locks(window: Window) -> None:
    """It says so, and is no error."""
    window.goes_to_list()
    expect(window.rows).to_have_count(0)
    expect(window.page.locator("#redislock-summary")).to_contain_text("0 held")


def test_search(site: Site, window: Window) -> None:
    """What is written there leaves only what it fits."""
    site.left_behind("import:42", label="the monthly run")
    site.left_behind("report:42")
    window.goes_to_list()
    expect(window.rows).to_have_count(2)
    window.page.locator("#searchbar").fill("monthly run")
    window.page.locator("#searchbar").press("Enter")
    expect(window.rows).to_have_count(1)
    expect(window.row("import:42")).to_be_visible()


def test_filters(site: Site, window: Window) -> None:
    """A click in the list of filters leaves only those; each says how many it would leave."""
    site.us.hold("ours")
    site.left_behind("left")
    site.strangers("strange", seconds=0)
    site.strangers("time", value="1000000000.5")
    window.goes_to_list()
    expect(window.rows).to_have_count(4)
    link = window.page.locator('#changelist-filter a[href*="state=stale"]')
    expect(link).to_contain_text("(3)")
    link.click()
    expect(window.rows).to_have_count(3)
    window.page.locator('#changelist-filter a[href*="kind=foreign"]').click()
    expect(window.rows).to_have_count(1)
    expect(window.row("strange")).to_be_visible()


def test_order(site: Site, window: Window) -> None:
    """By a click on a column's head, and the other way round by another one."""
    for name, silent in (("a", 300), ("b", 100), ("c", 200)):
        site.left_behind(name, silent=silent)
    window.goes_to_list()
    head = window.page.locator("#result_list thead .column-held")
    for names in ("bca", "acb"):
        before = window.page.url
        head.locator(".text a").click()
        window.page.wait_for_url(lambda url, before=before: url != before)
        assert "".join(window.names()) == names


def test_pages(site: Site, window: Window) -> None:
    """A hundred at a time; the second page has the others."""
    site.many(130)
    window.goes_to_list()
    expect(window.rows).to_have_count(100)
    window.page.locator(".paginator a", has_text="2").click()
    expect(window.rows).to_have_count(30)
    window.page.locator(".paginator a", has_text="Show all").click()
    expect(window.rows).to_have_count(130)


def test_without_javascript(site: Site, open_window: Open) -> None:
    """All is there, but for what would not work."""
    site.us.hold("job")
    window = open_window(java_script_enabled=False)
    window.goes_to_list()
    expect(window.row("job").locator(".redislock-state")).to_have_text("held")
    expect(window.page.locator("#redislock-refresh")).not_to_be_visible()
    site.us.release("job")
    window.page.reload()
    expect(window.rows).to_have_count(0)


def test_names_of_others(site: Site, window: Window) -> None:
    """What others call their locks is text, whatever it looks like, and can be opened."""
    for name in ("<b>x</b>", "a/b?c=d&e#f", "ünï · 锁", "_2F_5F", "x" * 300):
        site.left_behind(name)
    window.goes_to_list()
    expect(window.rows).to_have_count(5)
    for name in window.names():
        window.goes_to_list()
        window.page.get_by_role("link", name=name, exact=True).click()
        expect(window.page.locator("#content")).to_contain_text(name)
        expect(window.page.locator(".redislock-state")).to_have_text("stale")
