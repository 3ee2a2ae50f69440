"""The window notices what goes wrong in it; else the other tests would prove very little."""

from __future__ import annotations

import re
import time

import pytest

from tests.browser.chromium import Chromium
from tests.browser.site import Site
from tests.browser.window import Window
from tests.waiting import PATIENCE

FAULTS = {
    # What a page does, and what is said of it.
    "console: oops": "console.error('oops')",
    "uncaught: oops": "setTimeout(() => { throw new Error('oops') })",
    "CSP: style-src": "document.body.innerHTML = '<p style=\"color: red\">x</p>'",
    "CSP: script-src": "document.body.append(Object.assign(document.createElement('script'), "
    "{textContent: '1'}))",
    "answer: 404 /nowhere": "fetch('/nowhere')",
    "failed: http://127.0.0.1:1/": "window.location = 'http://127.0.0.1:1/'",
}


@pytest.mark.parametrize(("fault", "script"), FAULTS.items(), ids=FAULTS)
def test_a_fault(chromium: Chromium, site: Site, fault: str, script: str) -> None:
    """A fault fails its test, unless the test expects it."""
    window = Window(chromium.browser, site, "operator")
    window.goes_to_list()
    window.page.evaluate(f"() => {{ {script} }}")
    give_up = time.monotonic() + PATIENCE
    while not any(fault in found for found in window.faults):
        assert time.monotonic() < give_up, window.faults
        window.page.wait_for_timeout(10)  # or playwright would not hear of it
    with pytest.raises(AssertionError, match=re.escape(fault)):
        window.close()


def test_no_fault(window: Window) -> None:
    """The list has no fault, and has the Content Security Policy."""
    with window.page.expect_response("**/lockstatus/") as answer:
        window.goes_to_list()
    assert answer.value.headers["content-security-policy"] == "default-src 'self'"
    assert window.faults == []
