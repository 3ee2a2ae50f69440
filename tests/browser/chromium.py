"""A headless Chromium, driven by playwright from a thread of its own.

While playwright's synchronous interface is in use, an event loop runs in its thread, and Django's
ORM and our own locks refuse to work there. That must not be the main thread, which all other tests
have, too: so whatever touches the browser is called by `Chromium.run`, test functions included.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from playwright.sync_api import Browser

T = TypeVar("T")

FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


def missing() -> str:
    """What is wanted and not installed; "" when all is there."""
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed"
    return "" if shutil.which("chromium") else "there is no chromium on PATH"


class Chromium:
    """One that runs until `close`. Its profile is a new one, removed at its end."""

    browser: Browser

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "chromium")
        self.run(self._open)

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call it where the browser may be used."""
        return self._thread.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        self.run(self._close)
        self._thread.shutdown()

    def _open(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self.browser = self._playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                # Without its sandbox, which root and containers can't have.
                chromium_sandbox=False,
                args=FLAGS,
            )
        except BaseException:
            self._playwright.stop()
            raise

    def _close(self) -> None:
        self.browser.close()
        self._playwright.stop()
