"""The list refreshes itself: when it asks, and that an answer changes only what has changed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_redislock.base.tokens import NO_PROCESS
from tests.browser.fleet import fleet
from tests.browser.site import LIST, Site
from tests.browser.window import Open, Window, expect
from tests.operations.calling import granted
from tests.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Route

MINUTE = 60_000
ALIVE = {"process": NO_PROCESS}

SHOW = """
state => {
    Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
    Object.defineProperty(document, "hidden", {value: state === "hidden", configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}
"""

# That there was no answer is shown, where nothing has to make room for it, until there is one.
ASK = """
() => {
    const failed = document.getElementById("redislock-failed");
    failed.style.position = "fixed";
    failed.hidden = false;
    document.dispatchEvent(new Event("visibilitychange"));
}
"""

COUNT_BINDINGS = """
() => {
    const bind = window.Actions;
    window.bindings = 0;
    window.Actions = (...those) => { window.bindings += 1; bind(...those); };
}
"""

# Each row that comes is noted by its name.
NOTE_ROWS = """
() => {
    window.came = [];
    new MutationObserver(records => {
        for (const node of records.flatMap(record => [...record.addedNodes])) {
            window.came.push(node.textContent);
        }
    }).observe(document.getElementById("changelist-form"), {childList: true, subtree: true});
}
"""


def look(window: Window, every: str = "30", **parameters: str) -> None:
    """Open the list, with a mark that a reload would remove. For 30 seconds only the test
    refreshes it."""
    window.goes_to_list(**parameters)
    window.page.locator("#redislock-refresh").select_option(every)
    window.page.evaluate("window.mark = 'here'")


def is_the_same_page(window: Window) -> bool:
    return bool(window.page.evaluate("window.mark === 'here'"))


def ask(window: Window) -> None:
    """Begin a refresh, as if somebody had come back to the tab."""
    window.page.evaluate(ASK)


def answered(window: Window) -> None:
    """Wait until the answer has been handled."""
    expect(window.page.locator("#redislock-failed")).not_to_be_visible()


def refresh(window: Window) -> None:
    ask(window)
    answered(window)


def look_while_time_stands_still(window: Window, every: str) -> None:
    """Open the list; the page's time passes only when the test says so."""
    window.goes_to_list()
    window.page.locator("#redislock-refresh").select_option("0")
    window.page.clock.install(time=0)
    window.goes_to_list()
    window.page.clock.pause_at(MINUTE / 1000)
    window.page.locator("#redislock-refresh").select_option(every)


def asks_nothing(window: Window, milliseconds: int = MINUTE) -> None:
    """Let time pass in the page, which asks the server nothing meanwhile."""
    asked: list[str] = []

    def note(request: Any) -> None:
        asked.append(request.url)

    window.page.on("request", note)
    window.page.clock.run_for(milliseconds)
    window.page.remove_listener("request", note)
    assert asked == []


class Late:
    """Hold back the next answer to the page until the test lets it go."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.held: list[tuple[Route, Any]] = []
        window.page.route(re.compile(re.escape(LIST)), self._on_question)

    def _on_question(self, route: Route) -> None:
        if self.held:
            route.continue_()
        else:
            self.held.append((route, route.fetch()))

    def is_asked(self) -> None:
        ask(self.window)
        # The browser is asked, too, since that lets playwright go on.
        eventually(lambda: self.window.page.evaluate("true") and self.held)

    def comes(self) -> None:
        ((route, answer),) = self.held
        route.fulfill(response=answer)


def tick(window: Window, name: str) -> Locator:
    return window.row(name).locator("input[type=checkbox]")


def folds(window: Window) -> Locator:
    """Fold the filter by state, and return it."""
    details = window.page.locator("#changelist-filter details", has_text="By state")
    details.locator("summary").click()
    expect(details).not_to_have_attribute("open", "")
    return details


# Messages.


def test_a_message_is_for_who_can_see_it(site: Site, window: Window) -> None:
    """A refresh does not use up a message for another tab."""
    site.us.hold("job")
    look(window)
    others = window.page.context.request
    asked = others.get(site.address_of("job", "clear")).text()
    found = {
        name: re.findall(rf'name="{name}" value="([^"]+)"', asked)[0]
        for name in ("csrfmiddlewaretoken", "seen")
    }
    others.post(f"{LIST}clear/", form={**found, "reason": "it hangs"}, max_redirects=0)
    refresh(window)
    expect(window.rows).to_have_count(0)
    assert "Cleared “job”." in others.get(LIST).text()


def test_a_message_stays(site: Site, window: Window) -> None:
    """A message stays until its reader goes on, while locks come and go."""
    for name in ("job", "other"):
        site.us.hold(name)
    window.goes_to_list()
    window.asks_to_clear("job", "other")
    window.confirms("it hangs")
    expect(window.rows).to_have_count(0)
    site.others.hold("new")
    refresh(window)
    expect(window.row("new")).to_be_visible()
    expect(window.page.locator(".messagelist .success")).to_contain_text("Cleared 2 locks: ")


def test_rows_keep_their_place(site: Site, window: Window) -> None:
    """Renewals move no row, and show no other holder of a lock that several hold."""
    for name in ("c", "a", "b"):
        site.us.hold(name)
    for number in (1, 2):
        owner = f"web{number}:1:x"
        granted(site.redis, "pool", places=3, silent=90 + number, left=90, owner=owner, **ALIVE)
    look(window)
    before = window.names()
    assert before == ["pool", "c", "a", "b"]
    holder = window.row("pool").locator(".field-holder").inner_text()
    window.page.evaluate(NOTE_ROWS)
    for name in ("b", "c", "a"):
        assert site.us.is_told(name) == ""
    first, *_others = site.redis.zrange("redislock:{pool}", 0, -1)
    site.redis.zadd("redislock:{pool}", {first: int((time.time() + 900) * 1000)})
    refresh(window)
    assert window.names() == before
    assert not [text for text in window.page.evaluate("window.came") if "pool" in text]
    assert window.row("pool").locator(".field-holder").inner_text() == holder


# The first and the last.


def test_the_search_stays(site: Site, window: Window) -> None:
    """Text that is being typed stays when the first lock comes and the last one goes."""
    look(window)
    search = window.page.locator("#searchbar")
    search.press_sequentially("impor")
    site.us.hold("job")
    refresh(window)
    expect(window.row("job")).to_be_visible()
    expect(window.page.locator(".paginator")).to_contain_text("1 lock")
    search.press_sequentially("t")
    site.us.release("job")
    refresh(window)
    expect(window.rows).to_have_count(0)
    expect(window.page.locator("#result_list")).not_to_be_visible()
    expect(window.page.locator("select[name=action]")).not_to_be_visible()
    expect(search).to_have_value("import")
    expect(search).to_be_focused()
    assert is_the_same_page(window)


def test_the_first_can_be_cleared(site: Site, window: Window) -> None:
    """Also after the list was empty more than once. Django's script is bound once, since it never
    stops to listen."""
    look(window)
    window.page.evaluate(COUNT_BINDINGS)
    for name in ("a", "b", "c"):
        site.us.hold(name)
        refresh(window)
        window.page.locator("#action-toggle").check()
        expect(window.page.locator(".action-counter")).to_have_text("1 of 1 selected")
        expect(tick(window, name)).to_be_checked()
        window.page.locator("#action-toggle").uncheck()
        site.us.release(name)
        refresh(window)
        expect(window.rows).to_have_count(0)
    assert window.page.evaluate("window.bindings") == 1
    site.us.hold("job")
    refresh(window)
    window.asks_to_clear("job")
    window.confirms("it hangs")
    expect(window.page.locator(".messagelist .success")).to_contain_text("job")
    assert site.us.is_told("job").startswith("LeaseRevoked")


def test_after_logging_in_elsewhere(site: Site, window: Window) -> None:
    """A login makes earlier forms invalid, so a refresh brings the new value."""
    site.us.hold("job")
    look(window)
    cookie = {"name": "csrftoken", "value": "n" * 32, "url": site.url}
    window.page.context.add_cookies([cookie])  # type: ignore[list-item]
    refresh(window)
    window.asks_to_clear("job")
    expect(window.page.locator("input[name=reason]")).to_be_visible()


# Under the hand.


def test_a_folded_filter_stays_folded(site: Site, window: Window) -> None:
    """A filter stays folded, its numbers follow, and Django remembers when it is unfolded."""
    site.us.hold("job")
    look(window, _facets="True")
    details = folds(window)
    site.us.hold("new")
    refresh(window)
    expect(details).not_to_have_attribute("open", "")
    expect(details).to_contain_text("held (2)")
    details.locator("summary").click()
    expect(details.get_by_role("link", name="held (2)")).to_be_visible()
    kept = "JSON.parse(sessionStorage.getItem('django.admin.filtersState'))"
    window.page.wait_for_function(f"() => {kept}['state'] === true")


def test_a_filter_that_comes(site: Site, window: Window) -> None:
    """The filter by host comes with the first host, at its place; other filters stay as they
    are."""
    site.strangers("strange")
    look(window, _facets="True")
    details = folds(window)
    titles = window.page.locator("#changelist-filter summary")
    before = titles.all_inner_texts()
    site.left_behind("left", owner="elsewhere:1:x")
    refresh(window)
    expect(details).not_to_have_attribute("open", "")
    after = titles.all_inner_texts()
    assert after != before
    assert [title for title in after if "host" not in title] == before
    expect(window.page.locator("#changelist-filter")).to_contain_text("elsewhere (1)")
    assert is_the_same_page(window)
    window.page.reload()
    assert titles.all_inner_texts() == after


def test_unfolded_warnings_stay_unfolded(site: Site, window: Window) -> None:
    """The doctor's warnings stay unfolded."""
    look(window)
    details = window.page.locator("#redislock-warnings details").first
    if site.redis_server.external and not details.count():
        pytest.skip("that server gives no cause for warnings")
    details.locator("summary").click()
    site.us.hold("new")
    refresh(window)
    expect(window.row("new")).to_be_visible()
    expect(details).to_have_attribute("open", "")


def test_what_has_not_changed_stays(site: Site, window: Window) -> None:
    """A lock's row, link and checkbox stay, while its other cells and other rows change."""
    site.us.hold("job", label="the first")
    site.us.hold("short")
    site.others.wait_for("job", label="the second")
    site.await_queue("job", 1)
    look(window)
    parts = [window.row("job"), tick(window, "job"), window.row("job").get_by_role("link")]
    stay = [part.element_handle() for part in parts]
    site.us.release("job")
    site.us.release("short")
    site.others.gets("job")
    site.others.hold("another")
    refresh(window)
    expect(window.row("job")).to_contain_text("the second")
    expect(window.row("job").locator(".field-waiters")).to_have_text("0")
    expect(window.page.locator("#redislock-summary")).to_contain_text("2 held")
    expect(window.row("another")).to_be_visible()
    expect(window.row("short")).to_have_count(0)
    assert is_the_same_page(window)
    assert [part.evaluate("it => it.isConnected") for part in stay] == [True, True, True]


def test_the_focus_is_left_alone(site: Site, window: Window) -> None:
    """The focus is not set again: a screen reader would speak each time."""
    site.us.hold("job")
    site.us.hold("short")
    look(window)
    link = window.row("job").get_by_role("link")
    link.focus()
    window.page.evaluate(
        "window.heard = 0; document.addEventListener('focusin', () => { window.heard += 1; })"
    )
    site.others.hold("another")
    site.us.release("short")
    refresh(window)
    expect(window.row("another")).to_be_visible()
    expect(window.row("short")).to_have_count(0)
    expect(link).to_be_focused()
    assert window.page.evaluate("window.heard") == 0


def test_the_focus_moves_with_its_row(site: Site, window: Window) -> None:
    """The focus moves with its row when the order changes."""
    site.left_behind("a")
    site.left_behind("b")
    site.redis.zadd("redislock:{b}:queue", {"1": 1})
    look(window)
    assert window.names() == ["b", "a"]
    link = window.row("a").get_by_role("link")
    link.focus()
    site.redis.zadd("redislock:{a}:queue", {"1": 1, "2": 2})
    refresh(window)
    assert window.names() == ["a", "b"]
    expect(link).to_be_focused()


def test_what_is_read_stays_in_its_place(site: Site, window: Window) -> None:
    """A row that comes above the others does not move those that are on the screen."""
    fleet(site)
    look(window)
    row = window.row("order:1222")
    row.scroll_into_view_if_needed()
    window.page.evaluate("scrollBy(0, 200)")
    before = row.bounding_box()
    site.left_behind("a new one", silent=3000)
    refresh(window)
    expect(window.row("a new one")).to_be_attached()
    after = row.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) < 2


def test_a_press_is_not_cut_in_two(site: Site, window: Window) -> None:
    """An answer that comes while the mouse button is down changes nothing; later answers do."""
    site.us.hold("job")
    look(window)
    site.us.hold("another")
    late = Late(window)
    late.is_asked()
    box = tick(window, "job").bounding_box()
    window.page.mouse.move(box["x"] + 5, box["y"] + 5)
    window.page.mouse.down()
    late.comes()
    answered(window)
    assert window.names() == ["job"]
    window.page.mouse.up()
    expect(tick(window, "job")).to_be_checked()
    tick(window, "job").uncheck()
    refresh(window)
    expect(window.row("another")).to_be_visible()


def test_selected_text_stays(site: Site, window: Window) -> None:
    """A refresh waits while text is selected, for somebody who is about to copy it."""
    site.us.hold("job:42")
    look(window)
    cell = "document.querySelector('#result_list tbody .field-name')"
    window.page.evaluate(f"getSelection().selectAllChildren({cell})")
    site.us.hold("another")
    ask(window)
    expect(window.page.locator("#redislock-paused")).to_be_visible()
    assert window.page.evaluate("getSelection().toString()").strip() == "job:42"
    window.page.evaluate("getSelection().removeAllRanges()")
    refresh(window)
    expect(window.row("another")).to_be_visible()
    expect(window.page.locator("#redislock-paused")).not_to_be_visible()


# Answers.


def test_an_older_answer(site: Site, window: Window) -> None:
    """A late answer shows nothing that a newer answer did not."""
    site.us.hold("job")
    look(window)
    site.us.hold("short")
    late = Late(window)
    late.is_asked()
    site.us.release("short")
    site.us.hold("new")
    refresh(window)
    assert sorted(window.names()) == ["job", "new"]
    window.page.evaluate(NOTE_ROWS)
    late.comes()
    refresh(window)
    assert sorted(window.names()) == ["job", "new"]
    assert not [text for text in window.page.evaluate("window.came") if "short" in text]


# Pages.


def test_a_second_page(site: Site, window: Window) -> None:
    """All locks of two pages can be selected as soon as there are two pages."""
    site.many(100)
    look(window)
    window.page.evaluate(COUNT_BINDINGS)
    toggle = window.page.locator("#action-toggle")
    question = window.page.locator(".actions .question a")
    for _ in range(2):
        site.us.hold("zz")
        refresh(window)
        expect(window.page.locator(".paginator")).to_contain_text("101 locks")
        toggle.check()
        expect(question).to_be_visible()
        toggle.uncheck()
        site.us.release("zz")
        refresh(window)
        toggle.check()
        expect(window.page.locator(".action-counter")).to_have_text("100 of 100 selected")
        expect(question).not_to_be_visible()
        toggle.uncheck()
    site.us.hold("y")
    site.us.hold("zz")
    refresh(window)
    assert window.page.evaluate("window.bindings") <= 2
    toggle.check()
    expect(question).to_have_text("Select all 102 locks")
    question.click()
    expect(window.page.locator(".actions .all")).to_have_text("All 102 selected")
    window.goes_on_with_the_action()
    expect(window.page.locator("#content")).to_contain_text("102 locks")


def test_search_and_order_hold(site: Site, window: Window) -> None:
    """New rows obey the search and the order."""
    site.us.hold("a:1")
    look(window, q="a:", o="-1")
    site.us.hold("b:1")
    site.us.hold("a:2")
    refresh(window)
    assert window.names() == ["a:2", "a:1"]


# When it asks.


def test_it_waits_while_a_row_is_ticked(site: Site, window: Window) -> None:
    """A refresh waits while a row is ticked."""
    site.us.hold("job")
    look_while_time_stands_still(window, "2")
    tick = window.row("job").locator("input[type=checkbox]")
    tick.check()
    site.others.hold("new")
    asks_nothing(window)
    expect(window.page.locator("#redislock-paused")).to_be_visible()
    assert tick.is_checked()
    tick.uncheck()
    expect(window.page.locator("#redislock-paused")).not_to_be_visible()
    window.page.clock.run_for(MINUTE)
    expect(window.row("new")).to_be_visible()


def test_it_waits_while_nobody_looks(site: Site, window: Window) -> None:
    """A hidden tab asks nothing; when it is shown again, it does."""
    look_while_time_stands_still(window, "2")
    window.page.evaluate(SHOW, "hidden")
    site.us.hold("new")
    asks_nothing(window)
    window.page.evaluate(SHOW, "visible")
    window.page.clock.run_for(MINUTE)
    expect(window.row("new")).to_be_visible()


@pytest.mark.parametrize("every", ["2", "5", "30"])
def test_how_often(window: Window, every: str) -> None:
    """The chosen interval is used and remembered."""
    look_while_time_stands_still(window, every)
    asks_nothing(window, int(every) * 1000 - 1)
    with window.page.expect_response("**/lockstatus/"):
        window.page.clock.run_for(1)
    window.goes_to_list()
    expect(window.page.locator("#redislock-refresh")).to_have_value(every)


def test_a_slow_answer(window: Window) -> None:
    """After an answer that took a second, nothing is asked for five."""
    look_while_time_stands_still(window, "2")
    late = Late(window)
    window.page.clock.run_for(2000)
    eventually(lambda: window.page.evaluate("true") and late.held)
    window.page.clock.run_for(1000)
    window.page.evaluate("document.getElementById('redislock-failed').hidden = false")
    late.comes()
    answered(window)
    asks_nothing(window, 4999)
    with window.page.expect_response("**/lockstatus/"):
        window.page.clock.run_for(1)


def test_off(site: Site, window: Window) -> None:
    """Nothing is asked, even after the page is opened again."""
    look_while_time_stands_still(window, "2")
    window.page.locator("#redislock-refresh").select_option("0")
    asks_nothing(window, 10 * MINUTE)
    window.goes_to_list()
    expect(window.page.locator("#redislock-refresh")).to_have_value("0")
    asks_nothing(window, 10 * MINUTE)


def test_after_logging_out_elsewhere(site: Site, open_window: Open) -> None:
    """The page does not show the form for logging in where the rows were."""
    site.us.hold("job")
    window = open_window("superuser")
    look(window)
    window.is_logged_out()
    with window.page.expect_response("**/login/**"):
        ask(window)
    expect(window.page.locator("#result_list input[type=password]")).to_have_count(0)


def test_redis_is_away(site: Site, window: Window) -> None:
    """The rows stay, marked as out of date, until Redis answers again."""
    if site.redis_server.external:
        pytest.skip("the server is not ours to stop")
    site.left_behind("job")
    look(window, every="2")
    window.expects("answer: 503")
    try:
        with window.page.expect_response(lambda response: response.status == 503):
            site.redis_server.stop()
        expect(window.page.locator("#redislock-failed")).to_be_visible()
        expect(window.row("job")).to_be_visible()
    finally:
        site.redis_server.start()
    site.left_behind("another")
    expect(window.row("another")).to_be_visible()
    expect(window.page.locator("#redislock-failed")).not_to_be_visible()
    assert is_the_same_page(window)


def test_redis_comes_back(site: Site, window: Window) -> None:
    """The page that says that Redis does not answer asks every five seconds, and is the list when
    Redis answers again."""
    if site.redis_server.external:
        pytest.skip("the server is not ours to stop")
    site.redis_server.stop()
    try:
        window.goes_to(LIST, status=503)
        expect(window.page.locator("h1", has_text="does not answer")).to_be_visible()
        expect(window.page.get_by_text("could not be reached")).not_to_be_visible()
        window.page.get_by_text("Details").click()
        expect(window.page.get_by_text("could not be reached")).to_be_visible()
        with window.page.expect_response(lambda response: response.status == 503):
            pass
    finally:
        site.redis_server.start()
    site.left_behind("job")
    expect(window.row("job")).to_be_visible()
