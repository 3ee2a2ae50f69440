"""The shop's settings, with a Content Security Policy under each Django."""

from __future__ import annotations

import django
from shop.settings import *  # noqa: F403  # type: ignore[import-not-found]
from shop.settings import MIDDLEWARE

if django.VERSION < (6, 0):
    MIDDLEWARE = ["tests.browser.csp.middleware", *MIDDLEWARE]
