"""The site that is made of docs/, in a browser: what its search finds, and what it copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.browser.chromium import Chromium
from tests.browser.window import PHONE, WIDE, barriers, expect
from tests.docs.world import examples
from tests.test_site import SOURCE, build

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

QUESTIONS = {
    "acl": "security",
    "all settings": "settings",
    "arguments": "settings",
    "asyncio": "asgi",
    "busy lock test": "questions",
    "cache stampede": "questions",
    "cache.lock": "drop-in",
    "celery": "task-queues",
    "clear lock": "operations",
    "connections": "questions",
    "cron one host": "periodic",
    "deadlock": "lock-order",
    "debounce": "questions",
    "default settings": "settings",
    "disable in tests": "questions",
    "django admin": "admin",
    "double click": "questions",
    "fail open": "questions",
    "failover": "questions",
    "fencing token": "fencing",
    "gdpr": "questions",
    "grafana": "metrics",
    "gunicorn": "deployment",
    "idempotency key": "views",
    "initialise": "questions",
    "initialize": "questions",
    "keys": "questions",
    "kubernetes": "deployment",
    "leader election": "questions",
    "licence": "questions",
    "license": "questions",
    "management command": "commands",
    "memory": "questions",
    "migrate from cache.lock": "migrating",
    "model instance": "questions",
    "multi tenant": "questions",
    "multi-tenant": "questions",
    "name": "using",
    "optional": "questions",
    "owned": "questions",
    "per user": "questions",
    "permissions": "security",
    "personal data": "security",
    "pgbouncer": "deployment",
    "preload": "deployment",
    "prometheus": "metrics",
    "race condition": "questions",
    "rate limit": "questions",
    "read write lock": "shared",
    "redis cluster": "topologies",
    "redis is down": "questions",
    "redlock": "redlock",
    "reentrant": "questions",
    "retry": "questions",
    "select_for_update": "questions",
    "semaphore": "shared",
    "sentinel": "topologies",
    "sentry": "questions",
    "sigterm": "deployment",
    "singleton": "questions",
    "stuck lock": "troubleshooting",
    "test without redis": "testing",
    "throttle": "questions",
    "timeout": "settings",
    "transaction on commit": "transactions",
    "two redis": "questions",
    "type hints": "questions",
    "unique task": "questions",
    "upgrade": "versions",
    "vulnerability": "security",
    "wait forever": "troubleshooting",
    "who holds it": "operations",
    "windows": "questions",
}
"""Words that people type, British and American, and the page with the answer."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with the built site."""
    pages = tmp_path_factory.mktemp("docs")
    build(pages)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pages))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def open_page(chromium: Chromium, address: str) -> Iterator[Callable[..., Page]]:
    """Open a page of the site, in a context with these options."""
    contexts = []

    def open_page(path: str, **options: object) -> Page:
        contexts.append(chromium.browser.new_context(**options))
        page = contexts[-1].new_page()
        page.goto(f"{address}/{path}")
        return page

    yield open_page
    for context in contexts:
        chromium.run(context.close)


def test_what_people_type(open_page: Callable[..., Page]) -> None:
    """The search has the page with the answer among its first three results, and no page of the
    reference before it."""
    missed = {}
    page = open_page("search.html")
    for question, answer in QUESTIONS.items():
        page.goto(page.url.partition("?")[0] + f"?q={quote(question)}")
        expect(page.get_by_role("heading", name="Search Results")).to_be_visible()
        links = page.locator("#search-results li a").all()[:3]
        found = [(link.get_attribute("href") or "").partition(".html")[0] for link in links]
        before = found[: found.index(answer)] if answer in found else found
        if before == found or any(name.startswith("reference/") for name in before):
            missed[question] = found
    assert missed == {}


def copied(page: Page, block: Locator) -> str:
    """What its button puts into the clipboard."""
    block.hover()
    block.locator("button.copybtn").click()
    expect(block.locator("button.copybtn.success")).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_copied_is_what_is_typed(open_page: Callable[..., Page]) -> None:
    """Neither a prompt nor what follows it; a block of Python entirely. What is only read, such as
    a rule or a drawing, has no button."""
    page = open_page("index.html", permissions=["clipboard-read", "clipboard-write"])
    console = page.locator(".highlight-console")
    assert copied(page, console) == "python -m pip install django-redislock"
    (python,) = examples("docs/index.md")
    assert copied(page, page.locator(".highlight-python")) == python.rstrip()
    page.goto(page.url.replace("index", "operations"))
    shown = page.locator(".highlight-console").filter(has_text="To clear it:").first
    assert copied(page, shown) == "python manage.py redislock show report:daily"
    page.goto(page.url.replace("operations", "security"))
    assert page.locator(".highlight-text").count() > 0
    expect(page.locator(".highlight-text button.copybtn")).to_have_count(0)


def on_the_page(box: Any, width: int) -> bool:
    """Neither hidden nor in the closed drawer, left of the page."""
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


def test_the_repository_is_in_sight(open_page: Callable[..., Page]) -> None:
    """Without JavaScript, on a wide screen and on a phone."""
    for size in (WIDE, PHONE):
        page = open_page("using.html", java_script_enabled=False, viewport=size)
        links = page.locator(f'a[href="{SOURCE}"]').all()
        assert any(on_the_page(link.bounding_box(), size["width"]) for link in links), size


def test_nobody_is_kept_out_of_the_first_page(open_page: Callable[..., Page]) -> None:
    """axe finds no barrier, bright or dark, wide or on a phone; nothing scrolls sideways, and the
    picture is the one of the scheme. What is around the text is the theme's."""
    page = open_page("index.html")
    for size in (WIDE, PHONE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for scheme, other in (("light", "dark"), ("dark", "light")):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator(f"img.only-{scheme}")).to_be_visible()
            expect(page.locator(f"img.only-{other}")).to_be_hidden()
            assert barriers(page, "article") == {}, (size, scheme)
