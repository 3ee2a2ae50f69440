"""The list follows what happens, without a reload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.browser.site import Site
from tests.browser.window import Open, Window, expect

MINUTE = 60_000

SHOW = """
state => {
    Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
    Object.defineProperty(document, "hidden", {value: state === "hidden", configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}
"""


def look(window: Window, every: str = "2") -> None:
    """Open the list, with a mark that a reload would remove."""
    window.goes_to_list()
    window.page.locator("#redislock-refresh").select_option(every)
    window.page.evaluate("window.mark = 'here'")


def look_while_time_stands_still(window: Window, every: str) -> None:
    """The page's time goes on when the test says so."""
    look(window, "0")
    window.page.clock.install(time=0)
    window.goes_to_list()
    window.page.clock.pause_at(MINUTE / 1000)
    window.page.locator("#redislock-refresh").select_option(every)


def is_the_same_page(window: Window) -> bool:
    return bool(window.page.evaluate("window.mark === 'here'"))


@contextmanager
def questions(window: Window) -> Iterator[list[str]]:
    """What the page asks the server meanwhile."""
    asked: list[str] = []

    def note(request: object) -> None:
        asked.append(request.url)  # type: ignore[attr-defined]

    window.page.on("request", note)
    yield asked
    window.page.remove_listener("request", note)


def test_a_lock_changes_hands(site: Site, window: Window) -> None:
    """The row has the new holder, and nobody waiting any more; another one has come, and one has
    gone."""
    site.us.hold("job", label="the first")
    site.us.hold("short")
    site.others.wait_for("job", label="the second")
    site.await_queue("job", 1)
    look(window)
    expect(window.row("job")).to_contain_text("the first")
    site.us.release("job")
    site.us.release("short")
    site.others.gets("job")
    site.others.hold("new")
    row = window.row("job")
    expect(row).to_contain_text("the second")
    expect(row.locator(".field-waiters")).to_have_text("0")
    expect(window.row("new")).to_be_visible()
    expect(window.row("short")).to_have_count(0)
    expect(window.page.locator("#redislock-summary")).to_contain_text("2 held")
    assert is_the_same_page(window)


def test_the_first_and_the_last(site: Site, window: Window) -> None:
    """A list without locks looks otherwise; it follows all the same."""
    window.goes_to_list()
    window.page.locator("#redislock-refresh").select_option("2")
    expect(window.page.locator("#redislock-summary")).to_contain_text("0 held")
    site.us.hold("job")
    expect(window.row("job")).to_be_visible()
    site.us.release("job")
    expect(window.rows).to_have_count(0)
    expect(window.page.locator("#redislock-summary")).to_contain_text("0 held")


def test_the_action_knows_the_new_rows(site: Site, window: Window) -> None:
    """A row that has come by itself can be ticked and cleared, and the ticked are counted."""
    site.us.hold("old")
    look(window)
    site.us.hold("new")
    expect(window.row("new")).to_be_visible()
    window.page.locator("#action-toggle").check()
    expect(window.page.locator(".action-counter")).to_contain_text("2 of 2")
    window.page.locator("#action-toggle").uncheck()
    window.asks_to_clear("new")
    window.confirms("it hangs")
    expect(window.page.locator(".messagelist .success")).to_contain_text("new")
    assert site.us.is_told("old") == ""
    assert site.us.is_told("new").startswith("LeaseRevoked")


def test_the_keyboard_stays_where_it_is(site: Site, window: Window) -> None:
    """Whoever has tabbed to a row is there still after rows have come and gone."""
    site.us.hold("job")
    site.us.hold("other")
    look(window)
    window.row("job").get_by_role("link").focus()
    site.us.release("other")
    expect(window.row("other")).to_have_count(0)
    expect(window.row("job").get_by_role("link")).to_be_focused()


def test_the_question_is_kept(site: Site, window: Window) -> None:
    """Search, filters and order hold for what comes, too."""
    site.us.hold("a:1")
    window.goes_to_list(q="a:", o="-1")
    window.page.locator("#redislock-refresh").select_option("2")
    site.us.hold("b:1")
    site.us.hold("a:2")
    expect(window.rows).to_have_count(2)
    assert window.names() == ["a:2", "a:1"]


def test_it_waits_while_a_row_is_ticked(site: Site, window: Window) -> None:
    """What is ticked stays under the finger; unticked, it goes on."""
    site.us.hold("job")
    look_while_time_stands_still(window, "2")
    tick = window.row("job").locator("input[type=checkbox]")
    tick.check()
    site.others.hold("new")
    with questions(window) as asked:
        window.page.clock.run_for(MINUTE)
    assert asked == []
    expect(window.page.locator("#redislock-paused")).to_be_visible()
    assert tick.is_checked()
    tick.uncheck()
    expect(window.page.locator("#redislock-paused")).not_to_be_visible()
    window.page.clock.run_for(MINUTE)
    expect(window.row("new")).to_be_visible()


def test_it_waits_while_nobody_looks(site: Site, window: Window) -> None:
    """A hidden tab asks nothing; seen again, it does."""
    look_while_time_stands_still(window, "2")
    window.page.evaluate(SHOW, "hidden")
    site.us.hold("new")
    with questions(window) as asked:
        window.page.clock.run_for(MINUTE)
    assert asked == []
    window.page.evaluate(SHOW, "visible")
    window.page.clock.run_for(MINUTE)
    expect(window.row("new")).to_be_visible()


@pytest.mark.parametrize("every", ["2", "5", "30"])
def test_how_often(window: Window, every: str) -> None:
    """As chosen, which is remembered."""
    look_while_time_stands_still(window, every)
    with questions(window) as asked:
        window.page.clock.run_for(int(every) * 1000 - 1)
    assert asked == []
    with window.page.expect_response("**/lock/"):
        window.page.clock.run_for(1)
    window.goes_to_list()
    expect(window.page.locator("#redislock-refresh")).to_have_value(every)


def test_off(site: Site, window: Window) -> None:
    """Nothing is asked, now and when the page is opened again."""
    look_while_time_stands_still(window, "2")
    window.page.locator("#redislock-refresh").select_option("0")
    with questions(window) as asked:
        window.page.clock.run_for(10 * MINUTE)
    assert asked == []
    window.goes_to_list()
    expect(window.page.locator("#redislock-refresh")).to_have_value("0")
    with questions(window) as asked:
        window.page.clock.run_for(10 * MINUTE)
    assert asked == []


def test_after_logging_out_elsewhere(site: Site, open_window: Open) -> None:
    """The page does not show the form for logging in where the rows were."""
    site.us.hold("job")
    window = open_window("superuser")
    look(window)
    window.is_logged_out()
    with window.page.expect_response("**/login/**"):
        pass
    expect(window.page.locator("#result_list input[type=password]")).to_have_count(0)
