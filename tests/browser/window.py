"""A browser's window on the site, in which nothing may go wrong unnoticed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.browser.site import Site
from tests.waiting import PATIENCE

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect
except ImportError:
    Axe = expect = None  # type: ignore[assignment,misc]  # conftest.py skips all that wants them
else:
    expect.set_options(timeout=PATIENCE * 1000)

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        ConsoleMessage,
        Locator,
        Page,
        Request,
        Response,
    )

Open = Callable[..., "Window"]

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}

_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", event =>
    console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""

_BRIGHT_PARTS = """
() => [...document.querySelectorAll("body, body *")].filter(it => {
    const {width, height} = it.getBoundingClientRect();
    const [red, green, blue, alpha = 1] =
        getComputedStyle(it).backgroundColor.match(/[\\d.]+/g).map(Number);
    const brightness = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    return width * height > 2000 && alpha > 0.5 && brightness > 128;
}).map(it => it.outerHTML.slice(0, 100))
"""


class Window:
    """Somebody's, who is logged in. `page` is playwright's page.

    What the console reports as an error, violations of the Content Security Policy among them, and
    requests that failed, are `faults`, of which a test may leave none but those that it expects.
    """

    def __init__(self, browser: Browser, site: Site, user: str, **context: Any) -> None:
        self.site = site
        self._context = browser.new_context(
            **{"base_url": site.url, "viewport": WIDE, "locale": "en-US", **context}
        )
        self._context.set_default_timeout(PATIENCE * 1000)
        self._context.add_init_script(_REPORT_VIOLATIONS)
        if user:
            cookie = {"name": "sessionid", "value": site.sessions[user], "url": site.url}
            self._context.add_cookies([cookie])  # type: ignore[list-item]
        self.faults: list[str] = []
        self._expected: list[str] = []
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        self.page.on("requestfailed", self._on_request_failed)
        self.page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Answers and requests are looked at below; /favicon.ico, which nobody asked for, is not.
        if message.type in ("error", "warning") and "Failed to load" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _on_request_failed(self, request: Request) -> None:
        # What the page had begun to load when it was left.
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"failed: {request.url} {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"answer: {response.status} {urlsplit(response.url).path}")

    def expects(self, *faults: str) -> None:
        """These, as patterns, are what the test is about."""
        self._expected += faults

    def close(self) -> None:
        """Raises AssertionError if there was a fault that was not expected."""
        self._context.close()
        faults = [
            fault
            for fault in self.faults
            if not any(re.search(pattern, fault) for pattern in self._expected)
        ]
        assert not faults, "\n".join(faults)

    # Where to look.

    def goes_to(self, address: str, status: int = 200) -> None:
        if status >= 400:
            self.expects(rf"answer: {status}", rf"status of {status}")
        response = self.page.goto(address)
        assert response is not None
        assert response.status == status, (address, response.status)

    def goes_to_list(self, **parameters: str) -> None:
        self.goes_to(self.site.list_of(**parameters))

    @property
    def rows(self) -> Locator:
        return self.page.locator("#result_list tbody tr")

    def row(self, name: str) -> Locator:
        """That of a lock in the list."""
        return self.rows.filter(has=self.page.get_by_role("link", name=name, exact=True))

    def names(self) -> list[str]:
        """Of the locks in the list, in its order."""
        return self.page.locator("#result_list .field-name").all_inner_texts()

    # What to do.

    def asks_to_clear(self, *names: str) -> None:
        """Tick these in the list, and choose the action; the question is the next page."""
        for name in names:
            self.row(name).locator("input[type=checkbox]").check()
        self.goes_on_with_the_action()

    def goes_on_with_the_action(self) -> None:
        self.page.locator("select[name=action]").select_option("clear_locks")
        self.page.locator("button[name=index]").click()
        expect(self.page.locator("input[name=reason]")).to_be_visible()

    def confirms(self, reason: str) -> None:
        """Answer the question."""
        self.page.locator("input[name=reason]").fill(reason)
        self.page.locator("#content form [type=submit]").click()

    def clears(self, name: str, reason: str) -> None:
        """All of it."""
        self.goes_to_list()
        self.asks_to_clear(name)
        self.confirms(reason)
        expect(self.page.locator(".messagelist .success")).to_contain_text(name)

    def remembers(self, name: str, value: str) -> None:
        """As if a page had kept that in the browser's storage before."""
        self._context.add_init_script(f"localStorage.setItem({name!r}, {value!r})")

    def is_logged_out(self) -> None:
        """In another tab, say."""
        self._context.clear_cookies(name="sessionid")

    def tabs_to(self, target: Locator) -> None:
        """With the key of that name, as people do who have no mouse."""
        for _ in range(200):
            self.page.keyboard.press("Tab")
            if target.evaluate("it => it === document.activeElement"):
                return
        raise AssertionError(f"{target} is not reached by Tab")

    # How it looks.

    def bright_parts(self) -> list[str]:
        """Larger parts of the page whose background is bright."""
        found: list[str] = self.page.evaluate(_BRIGHT_PARTS)
        return found

    def does_not_scroll_sideways(self, selector: str = "html") -> bool:
        return bool(
            self.page.locator(selector).evaluate("it => it.scrollWidth <= it.clientWidth + 1")
        )

    def barriers(self) -> dict[str, str]:
        # It needs a window with bypass_csp=True: axe puts styles into the page.
        return barriers(self.page)


def barriers(page: Page, part: str | None = None) -> dict[str, str]:
    """What axe finds that keeps people out, in the page or a part of it: where it is, and
    what is wrong there."""
    found = Axe().run(page, part).response
    return {
        f"{violation['id']} {' '.join(map(str, node['target']))}": node["failureSummary"]
        for violation in found["violations"]
        for node in violation["nodes"]
    }
