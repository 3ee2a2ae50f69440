"""Clearing locks: what was seen, after a question, with a reason, by who may do it."""

from __future__ import annotations

import pytest

from tests.browser.site import LIST, Site
from tests.browser.window import Open, Window, expect


def test_from_the_list(site: Site, window: Window) -> None:
    """It is asked first who is affected, and why it is done; then the holder is told, the next one
    has the lock, and it is written down."""
    site.us.hold("invoice:42", label="the monthly run")
    site.us.hold("untouched")
    site.others.wait_for("invoice:42", label="the next one")
    site.await_queue("invoice:42", 1)
    window.goes_to_list()
    window.asks_to_clear("invoice:42")
    content = window.page.locator("#content")
    expect(content).to_contain_text("invoice:42")
    expect(content).to_contain_text("the monthly run")
    expect(content).not_to_contain_text("untouched")
    assert site.us.state("invoice:42") == "held"

    window.confirms("it hangs since Monday")
    messages = window.page.locator(".messagelist")
    expect(messages.locator(".success")).to_contain_text("invoice:42")
    site.others.gets("invoice:42")
    told = site.us.is_told("invoice:42")
    assert told.startswith("LeaseRevoked")
    assert "operator" in told
    assert "it hangs since Monday" in told
    assert site.us.is_told("untouched") == ""
    [(user, name, message)] = site.log_entries()
    assert (user, name) == ("operator", "invoice:42")
    assert "it hangs since Monday" in message


def test_from_its_page(site: Site, window: Window) -> None:
    """The same, by the link there."""
    site.us.hold("job")
    window.goes_to(site.address_of("job"))
    window.page.get_by_role("link", name="Clear", exact=True).click()
    window.confirms("it hangs")
    expect(window.page.locator(".messagelist .success")).to_contain_text("job")
    assert site.us.is_told("job").startswith("LeaseRevoked")


def test_without_a_reason(site: Site, open_window: Open) -> None:
    """Nothing is done: the browser asks for one, and so does the server."""
    site.us.hold("job")
    window = open_window(java_script_enabled=False)
    window.goes_to_list()
    window.asks_to_clear("job")
    reason = window.page.locator("input[name=reason]")
    expect(reason).to_have_attribute("required", "")
    window.confirms("   ")
    expect(window.page.locator(".errorlist")).to_be_visible()
    expect(window.page.locator("#content")).to_contain_text("job")
    assert site.us.is_told("job") == ""
    window.confirms("it hangs")
    expect(window.page.locator(".messagelist .success")).to_contain_text("job")
    assert site.us.is_told("job").startswith("LeaseRevoked")


def test_thought_better_of_it(site: Site, window: Window) -> None:
    """The way back does nothing."""
    site.us.hold("job")
    window.goes_to_list()
    window.asks_to_clear("job")
    window.page.locator("#content .closelink").click()
    expect(window.row("job")).to_be_visible()
    assert site.us.is_told("job") == ""


def test_a_stale_one_and_a_strangers(site: Site, window: Window) -> None:
    """They have no holder to tell, and go all the same."""
    site.left_behind("left")
    site.strangers("strange")
    window.goes_to_list()
    window.asks_to_clear("left", "strange")
    window.confirms("nobody misses them")
    expect(window.page.locator(".messagelist .success")).to_contain_text("strange")
    expect(window.rows).to_have_count(0)


def test_all_of_many(site: Site, window: Window) -> None:
    """Those of other pages, too."""
    site.many(130)
    window.goes_to_list()
    window.page.locator("#action-toggle").check()
    window.page.locator(".actions .question a").click()
    window.goes_on_with_the_action()
    expect(window.page.locator("#content")).to_contain_text("130")
    window.confirms("spring cleaning")
    expect(window.page.locator(".messagelist .success")).to_contain_text("130")
    expect(window.rows).to_have_count(0)
    assert len(site.log_entries()) == 130


def test_who_may_only_look(site: Site, open_window: Open) -> None:
    """Sees no way to clear, and has none."""
    site.us.hold("job")
    window = open_window("reader")
    window.goes_to_list()
    expect(window.row("job")).to_be_visible()
    expect(window.page.locator("select[name=action]")).to_have_count(0)
    expect(window.row("job").locator("input[type=checkbox]")).to_have_count(0)
    window.goes_to(site.address_of("job"))
    expect(window.page.get_by_role("link", name="Clear", exact=True)).to_have_count(0)
    window.goes_to(site.address_of("job", "clear"), status=403)
    answer = window.posts(LIST, action="clear_locks", _selected_action="default:job")
    assert "reason" not in answer
    assert site.us.is_told("job") == ""


def test_who_may_do_nothing(site: Site, open_window: Open) -> None:
    """Sees no locks."""
    site.us.hold("job")
    window = open_window("staff")
    window.goes_to("/admin/")
    expect(window.page.locator("#content")).not_to_contain_text("Locks")
    for address in (LIST, site.address_of("job"), site.address_of("job", "history")):
        window.goes_to(address, status=403)


@pytest.mark.parametrize("page", ["change", "clear", "history"])
def test_who_is_not_logged_in(site: Site, open_window: Open, page: str) -> None:
    """Is asked to."""
    site.us.hold("job")
    window = open_window("")
    window.goes_to(site.address_of("job", page))
    expect(window.page.locator("input[name=password]")).to_be_visible()
