"""The tour of example_project/: its page while its processes work, and what its buttons do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Chromium
from tests.browser.window import PHONE, Window, expect
from tests.processes import ROOT
from tests.waiting import PATIENCE

SLOW = 2 * PATIENCE
"""Of its eight processes each has to have its turn, and half a minute makes a lock stale."""


class Tour:
    """One that was started, with what a window wants to know of its site."""

    sessions: dict[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "example_project" / "manage.py", "tour", "--port=0"],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.browser.tour_settings",
                "TMPDIR": str(directory),
            },
        )
        give_up = threading.Timer(PATIENCE, self.process.kill)
        give_up.start()
        assert self.process.stdout is not None
        said = ""
        while not (found := re.search(r"(http://127.0.0.1:\d+)/tour/", said)):
            said += self.process.stdout.readline() or self.has_ended(said)
        give_up.cancel()
        self.url = found[1]

    def has_ended(self, said: str) -> str:
        raise AssertionError(f"the tour has ended, or was not there in time: {said}")

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate()


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    tour = Tour(tmp_path_factory.mktemp("tour"))
    yield tour
    tour.close()


Open = Callable[..., Window]


@pytest.fixture
def open_tour(chromium: Chromium, tour: Tour) -> Iterator[Open]:
    """Open windows on its page; each must be without faults at the end."""
    windows: list[Window] = []

    def open_tour(**context: Any) -> Window:
        windows.append(Window(chromium.browser, tour, "", **context))  # type: ignore[arg-type]
        windows[-1].goes_to("/tour/")
        return windows[-1]

    yield open_tour
    for window in windows:
        chromium.run(window.close)


@pytest.fixture
def window(chromium: Chromium, open_tour: Open) -> Window:
    """One in which customers are seen at work, under the lock."""
    window = chromium.run(open_tour)
    chromium.run(press, window, "Buy with the lock", "take the lock")
    chromium.run(sees, window, r"customer-\d")
    return window


def press(window: Window, text: str, says: str) -> str:
    """Press a button; returns what is said."""
    said = window.page.locator("#said")
    for _ in range(3):  # The lock may just have been on its way from one to another.
        window.page.get_by_role("button", name=text).click()
        expect(said).not_to_be_empty()
        if re.search(says, said.inner_text()):
            break
    expect(said).to_have_text(re.compile(says))
    return said.inner_text()


def until(window: Window, look: Callable[[], Any]) -> Any:
    """Look until there is something to see, as `eventually` does; the page goes on meanwhile."""
    for _ in range(int(SLOW / 0.1)):
        if seen := look():
            return seen
        window.page.wait_for_timeout(100)
    raise AssertionError(window.page.locator("#live").inner_text())


def sees(window: Window, pattern: str) -> str:
    """Wait until that is in the live part; returns what it was."""
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


def sales(window: Window) -> tuple[int, int]:
    """How many lamps are sold, and how many twice."""
    shown = window.page.locator("#live").inner_text()
    sold, twice = re.search(r"(\d+) lamps are sold, .*?(-?\d+) sold twice", shown, re.S).groups()
    return int(sold), int(twice)


def await_sales(window: Window, count: int) -> int:
    """Wait until so many more are sold; returns how many are sold twice then."""
    before, _ = sales(window)
    until(window, lambda: sales(window)[0] >= before + count)
    return sales(window)[1]


def test_locks_are_live(window: Window) -> None:
    """The stock's lock goes from hand to hand while the page stays; the others are there, too."""
    window.page.evaluate("window.mark = 'here'")
    first = until(window, lambda: holder(window))
    until(window, lambda: holder(window) not in ("", first))
    sees(window, r"customer-\d waits for \d")
    sees(window, r"export semaphore, 3 of 3")
    sees(window, r"catalogue read")
    sees(window, r"catalogue write")
    sees(window, r"ask_for_bestsellers-\w+ waits for")
    sees(window, r"redislock-shop:prices timestamp\s+a value that is not ours")
    sees(window, r"redislock-shop:prices timestamp\s+\S+import_prices")
    sees(window, r"Stock reports: [1-9]")
    assert window.page.evaluate("window.mark") == "here"


def test_without_the_lock_and_with_it(window: Window) -> None:
    """Lamps are sold twice, and then no more of them."""
    press(window, "Buy without the lock", "do without the lock")
    sees(window, "Sold without the lock")
    before = sales(window)[1]
    until(window, lambda: sales(window)[1] > before)
    press(window, "Buy with the lock", "take the lock")
    sees(window, "Sold under the lock")
    twice = await_sales(window, 6)  # those who were at it are done
    assert await_sales(window, 3) == twice


def test_the_holder_is_killed(window: Window) -> None:
    """It is gone, another one takes its place, and nothing is sold twice."""
    twice = await_sales(window, 6)
    pid = re.findall(r"\d+", press(window, "Kill the holder", r"Process \d+ is killed"))[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    sees(window, rf"killed stock:1, process {pid}")
    until(window, lambda: holder(window) not in ("", pid))
    assert await_sales(window, 4) == twice
    until(window, lambda: len(re.findall(r"customer-\d", lock(window, "stock:1"))) == 3)


def test_the_holder_stands_still(window: Window) -> None:
    """Its late write is refused, nothing is sold twice, and it goes on."""
    twice = await_sales(window, 6)
    for _ in range(3):  # It may have been stopped while it gave the lock back, or while it wrote.
        pid = re.findall(r"\d+", press(window, "Stop the holder", r"Process \d+ stands still"))[0]
        until(window, lambda pid=pid: holder(window) not in ("", pid))
        assert await_sales(window, 3) == twice
        until(window, lambda pid=pid: holder(window) == pid)
        if "refused" in window.page.locator("#live").inner_text():
            break
    sees(window, rf"lost stock:1, \S+:{pid}:")
    sees(window, r"refused stock:1, customer-\d: ")


def test_a_lock_is_taken_away(window: Window) -> None:
    """Its holder is told by whom; the one of somebody who died is stale, and then it is gone."""
    press(window, r"Clear stock:1", r"stock:1 is taken away from \S+customer-\d")
    sees(window, r"cleared stock:1, \S+customer-\d: ")
    until(window, lambda: "stale" in lock(window, "export:accounts"))
    press(window, "Clear export:accounts", r"export:accounts is taken away")
    until(window, lambda: not lock(window, "export:accounts"))
    press(window, "Clear export:accounts", "is free")


def test_not_live(window: Window) -> None:
    """Whoever wants to read in peace unticks it, and asks for nothing."""
    window.page.get_by_role("checkbox").uncheck()
    window.page.wait_for_load_state("networkidle")
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    window.page.wait_for_timeout(2500)
    assert asked == []
    window.page.get_by_role("checkbox").check()
    until(window, lambda: asked)


def test_the_tour_does_not_answer(window: Window) -> None:
    """What is shown is marked as old until it answers again, and a button says so."""
    window.expects("failed: .*/tour/")
    live = window.page.locator("#live")
    window.page.route("**/tour/*/**", lambda route: route.abort())
    window.page.get_by_role("button", name="Kill the holder").click()
    expect(window.page.locator("#said")).to_contain_text("Is the tour still running?")
    expect(live).to_have_class("old")
    window.page.unroute("**/tour/*/**")
    expect(live).not_to_have_class("old")


def test_without_javascript(open_tour: Open) -> None:
    """It is there once, and a button answers in words."""
    window = open_tour(java_script_enabled=False)
    assert "Without JavaScript" in window.page.content()
    window.page.get_by_role("button", name="Buy with the lock").click()
    expect(window.page.locator("body")).to_contain_text("take the lock")


def test_buttons_are_for_the_page(tour: Tour, window: Window) -> None:
    """Another site can't press them."""
    answer = window.page.context.request.post(f"{tour.url}/tour/press/kill/")
    assert answer.status == 403
    assert window.posts("/tour/press/nothing/").find("Not Found") > 0


def test_the_code_is_shown(window: Window) -> None:
    """As it stands in the files that are named."""
    shown = window.page.locator("details")
    for number in range(shown.count()):
        path, line = shown.nth(number).locator("summary code").inner_text().split(":")
        lines = (ROOT / "example_project" / path).read_text().splitlines()[int(line) - 1 :]
        source = shown.nth(number).locator("pre").inner_text().rstrip().splitlines()
        assert source == lines[: len(source)]
        assert len(source) > 2


def test_nobody_is_kept_out(open_tour: Open) -> None:
    """axe finds nothing, in bright and in dark, wide and on a phone; nothing moves sideways."""
    window = open_tour(bypass_csp=True)
    sees(window, r"customer-\d waits for")
    for size in ({"width": 1280, "height": 900}, PHONE):
        window.page.set_viewport_size(size)  # type: ignore[arg-type]
        assert window.does_not_scroll_sideways()
        assert window.does_not_scroll_sideways("#beside")
        for scheme in ("light", "dark"):
            window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert window.barriers() == {}, (size, scheme)
        assert window.bright_parts() == []


def test_the_keyboard_alone(window: Window) -> None:
    """A button is reached, and pressed, while the rest of the page changes."""
    button = window.page.get_by_role("button", name="Clear stock:1")
    window.tabs_to(button)
    window.page.keyboard.press("Enter")
    expect(window.page.locator("#said")).to_contain_text("stock:1")
    expect(button).to_be_focused()
