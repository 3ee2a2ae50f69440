"""The shop's settings, with commits that take a moment."""

from __future__ import annotations

from typing import Any

from shop.settings import *  # noqa: F403  # type: ignore[import-not-found]
from shop.settings import DATABASES as _DATABASES

DATABASES: dict[str, Any] = {
    "default": {**_DATABASES["default"], "ENGINE": "tests.servers.slow_commit"}
}
