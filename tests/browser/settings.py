"""The shop's settings, with a Content Security Policy under each Django, and quick logins."""

from __future__ import annotations

import django
from shop.settings import *  # noqa: F403  # type: ignore[import-not-found]
from shop.settings import MIDDLEWARE

if django.VERSION < (6, 0):
    MIDDLEWARE = ["tests.browser.csp.middleware", *MIDDLEWARE]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# That of tests/settings.py, in which those run who hold the locks.
REDISLOCK = {"PREFIX": "redislock"}
# Errors are told by the page that has them.
LOGGING_CONFIG = None
