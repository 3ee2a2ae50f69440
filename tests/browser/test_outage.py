"""Redis is away: a page that says so, and what was not done. The rest of the admin works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.site import Site
from tests.browser.window import Window, expect


@pytest.fixture(autouse=True)
def _it_comes_back(site: Site) -> Iterator[None]:
    if site.redis_server.external:
        pytest.skip("the server is not ours to stop")
    yield
    if not site.redis_server.running:
        site.redis_server.start()


def test_it_comes_and_goes(site: Site, window: Window) -> None:
    """The page of locks says so with a 503, the others are as ever; then it is there again."""
    site.left_behind("job")
    window.goes_to_list()
    expect(window.row("job")).to_be_visible()
    site.redis_server.stop()
    for address in (site.list_of(), site.address_of("job"), site.address_of("job", "clear")):
        window.goes_to(address, status=503)
        expect(window.page.locator("#content")).to_contain_text("Redis")
        expect(window.page.locator("#content")).not_to_contain_text("Traceback")
    window.goes_to("/admin/")
    expect(window.page.locator("#content")).to_contain_text("Locks")
    site.redis_server.start()
    window.goes_to_list()
    expect(window.rows).to_have_count(0)
    expect(window.page.locator("#redislock-summary")).to_contain_text("0 held")


def test_while_the_list_is_live(site: Site, window: Window) -> None:
    """It says that it can't look any more, and goes on when it can."""
    site.left_behind("job")
    window.goes_to_list()
    window.page.locator("#redislock-refresh").select_option("2")
    window.page.evaluate("window.mark = 'here'")
    window.expects("answer: 503")
    with window.page.expect_response(lambda response: response.status == 503):
        site.redis_server.stop()
    expect(window.page.locator("#redislock-failed")).to_be_visible()
    expect(window.row("job")).to_be_visible()
    site.redis_server.start()
    site.left_behind("another")
    expect(window.row("another")).to_be_visible()
    expect(window.page.locator("#redislock-failed")).not_to_be_visible()
    assert window.page.evaluate("window.mark") == "here"
