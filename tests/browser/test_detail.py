"""A lock's own page, and its history."""

from __future__ import annotations

from tests.browser.site import LIST, Site
from tests.browser.window import Open, Window, expect


def test_a_lock(site: Site, window: Window) -> None:
    """Who holds it and why, how it is set, and who waits, in their order."""
    site.us.hold("invoice:42", label="the monthly run")
    site.others.wait_for("invoice:42", label="the first to wait")
    site.await_queue("invoice:42", 1)
    site.others.wait_for("invoice:42", label="the second to wait", as_="another")
    site.await_queue("invoice:42", 2)
    window.goes_to_list()
    window.page.get_by_role("link", name="invoice:42", exact=True).click()
    content = window.page.locator("#content")
    expect(content).to_contain_text("the monthly run")
    expect(content).to_contain_text(f"{site.us.process.pid}")
    expect(content).to_contain_text(site.fencing_token("invoice:42"))
    text = content.inner_text()
    assert text.index("the first to wait") < text.index("the second to wait")
    expect(content.get_by_text("MAX_HOLD")).to_be_visible()
    assert site.token("invoice:42") not in window.page.content()
    # Nothing to edit, nothing to save.
    expect(content.locator("input:not([type=hidden]), textarea, button")).to_have_count(0)


def test_what_does_not_exist(site: Site, open_window: Open) -> None:
    """Nobody adds, changes or deletes a lock, superusers neither."""
    site.us.hold("job")
    window = open_window("superuser")
    window.goes_to(f"{LIST}add/", status=403)
    window.goes_to(site.address_of("job", "delete"), status=403)
    window.goes_to_list()
    expect(window.page.locator("#content .addlink")).to_have_count(0)
    options = window.page.locator("select[name=action] option").all_inner_texts()
    assert len(options) == 2, options
    window.goes_to(site.address_of("job"))
    expect(window.page.locator(".deletelink")).to_have_count(0)
