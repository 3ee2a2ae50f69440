"""The site, and windows on it. Without Chromium these tests are skipped, unless
REDISLOCK_REQUIRE_CHROMIUM=1 says that they must not be."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Chromium, missing
from tests.browser.site import Site
from tests.browser.window import Open, Window

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = missing()
    ours = [item for item in items if item.path.is_relative_to(HERE)] if why else []
    if ours and os.environ.get("REDISLOCK_REQUIRE_CHROMIUM") == "1":
        raise pytest.UsageError(f"tests/browser: {why}")
    for item in ours:
        item.add_marker(pytest.mark.skip(why))


@pytest.fixture(scope="package")
def chromium() -> Iterator[Chromium]:
    chromium = Chromium()
    yield chromium
    chromium.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Whoever has a window runs in the browser's thread."""
    chromium = pyfuncitem.funcargs.get("chromium")
    if chromium is not None:
        pyfuncitem.obj = functools.partial(chromium.run, pyfuncitem.obj)
    return (yield)


@pytest.fixture(scope="package")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), "tests.browser.settings")
    yield site
    site.close()


@pytest.fixture
def site(shared_site: Site) -> Site:
    """Without a lock."""
    shared_site.clean()
    return shared_site


@pytest.fixture
def open_window(chromium: Chromium, site: Site) -> Iterator[Open]:
    """Open windows on the site; at the end each must be without faults."""
    windows: list[Window] = []

    def open_window(user: str = "operator", **context: Any) -> Window:
        windows.append(Window(chromium.browser, site, user, **context))
        return windows[-1]

    yield open_window
    for window in windows:
        chromium.run(window.close)


@pytest.fixture
def window(chromium: Chromium, open_window: Open) -> Window:
    """An operator's."""
    return chromium.run(open_window)
